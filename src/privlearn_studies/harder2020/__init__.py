"""Harder et al. 2019, DP-MAC: the method of auxiliary coordinates."""
