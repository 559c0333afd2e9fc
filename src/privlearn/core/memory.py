"""Too little memory is told apart from examples that can't be computed.

Of the latter nothing is said, and they add nothing. Were the former treated so, whether an example
counts would follow from what other examples left of the memory, and a machine that is too small
would train on noise alone without a word.

A run that ends for want of memory shows that a single example needed more than there was; the
message says nothing else, and holds no size, since lengths of rows are private.
"""

from __future__ import annotations

import torch

from privlearn.errors import OutOfMemory

#: What errors of PyTorch's allocators of processors say.
_ALLOCATORS = ("DefaultCPUAllocator", "not enough memory: you tried to allocate")


def is_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is too little memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in _ALLOCATORS)


def require_memory(error: BaseException) -> None:
    """Raise `OutOfMemory`, without the sizes that `error` may name, if it is one of memory."""
    if is_of_memory(error):
        raise OutOfMemory(
            "there is too little memory to compute a single example: the run ends here, and what "
            "was charged stays charged. Expected room for one example in forward and backward "
            "pass. Take a smaller model, shorter rows, precision bf16, or more memory"
        ) from None
