"""Tensors that are computed from trained parameters alone, and the way of gradients through them."""
