"""Parameters that are computed from trained ones, and the way of gradients through them; and frozen
ones.
"""
