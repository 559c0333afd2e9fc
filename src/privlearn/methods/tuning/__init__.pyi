from privlearn.methods.tuning.blocks import Blocks as Blocks
from privlearn.methods.tuning.stopping import Candidate as Candidate
from privlearn.methods.tuning.stopping import RandomStopping as RandomStopping
