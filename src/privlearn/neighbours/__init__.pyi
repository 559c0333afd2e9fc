from privlearn.neighbours.comparison import Comparison as Comparison
from privlearn.neighbours.comparison import compare_runs as compare_runs
from privlearn.neighbours.recorder import ReleaseRecorder as ReleaseRecorder
