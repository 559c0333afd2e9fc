from privlearn.runs.checkpoint import Checkpoint as Checkpoint
