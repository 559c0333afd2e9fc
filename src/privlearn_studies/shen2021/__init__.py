"""Shen et al. 2021: fewer dimensions, better private models. Toy models, released features, and
larger networks.
"""
