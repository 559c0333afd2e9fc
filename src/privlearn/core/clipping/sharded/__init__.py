"""Clipped sums of models whose parameters `torch.distributed.fsdp.fully_shard` (FSDP2) shares out
over processes.
"""
