"""Whether a model and its loss keep the examples of a batch apart: shown on the batch, and denied
by default.
"""
