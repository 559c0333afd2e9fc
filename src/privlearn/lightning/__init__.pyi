from privlearn.lightning.strategy import PrivateStrategy as PrivateStrategy
