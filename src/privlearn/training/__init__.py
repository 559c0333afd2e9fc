"""DP-SGD."""
