from privlearn.core import accounting as accounting
from privlearn.core import clipping as clipping
from privlearn.core import mechanisms as mechanisms
from privlearn.core import plan as plan
from privlearn.core import sampling as sampling
from privlearn.core import schedules as schedules
from privlearn.core import streams as streams
