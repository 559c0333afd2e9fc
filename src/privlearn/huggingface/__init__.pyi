from privlearn.huggingface.example_losses import ExampleLoss as ExampleLoss
from privlearn.huggingface.experts import group_experts as group_experts
from privlearn.huggingface.generation import PrivateSeq2SeqTrainer as PrivateSeq2SeqTrainer
from privlearn.huggingface.pretrained import load_pretrained as load_pretrained
from privlearn.huggingface.pretrained import publish_pretrained as publish_pretrained
from privlearn.huggingface.trainer import PrivateTrainer as PrivateTrainer
from privlearn.huggingface.trl import PrivateDPOTrainer as PrivateDPOTrainer
from privlearn.huggingface.trl import PrivateSFTTrainer as PrivateSFTTrainer
