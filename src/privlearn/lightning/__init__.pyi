from privlearn.lightning.strategy import PrivateDDPStrategy as PrivateDDPStrategy
from privlearn.lightning.strategy import PrivateStrategy as PrivateStrategy
