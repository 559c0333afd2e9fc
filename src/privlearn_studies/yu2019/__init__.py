"""Yu et al. 2019, Differentially Private Model Publishing for Deep Learning."""
