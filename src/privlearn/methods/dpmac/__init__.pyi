from privlearn.core.clipping.derivative_bounds import Analytic as Analytic
from privlearn.core.clipping.derivative_bounds import Derivatives as Derivatives
from privlearn.core.clipping.derivative_bounds import Histogram as Histogram
from privlearn.methods.dpmac.coordinates import Coordinates as Coordinates
