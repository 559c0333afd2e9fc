from privlearn.tuning.blocks import Blocks as Blocks
from privlearn.tuning.stopping import Candidate as Candidate
from privlearn.tuning.stopping import RandomStopping as RandomStopping
