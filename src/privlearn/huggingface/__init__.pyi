from privlearn.huggingface.example_losses import ExampleLoss as ExampleLoss
from privlearn.huggingface.pretrained import load_pretrained as load_pretrained
from privlearn.huggingface.pretrained import publish_pretrained as publish_pretrained
from privlearn.huggingface.trainer import PrivateTrainer as PrivateTrainer
