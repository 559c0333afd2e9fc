"""Whether a model and its loss keep the examples of a batch apart: shown on the batch at hand, and denied by default."""
