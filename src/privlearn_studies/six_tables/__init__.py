"""Classifiers and regressors of six tables: ours, those of other packages, and one without
noise.
"""
