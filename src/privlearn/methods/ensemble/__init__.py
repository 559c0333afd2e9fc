"""PATE's parts: the plan, the aggregator and the student."""
