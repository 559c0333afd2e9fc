"""Gaussian draws by a compiled kernel, where one was built: those of `noise.gaussian` to the bit,
in less time.

`PRIVLEARN_COMPILE=1 pip install .` builds it from `noise_kernel.c` with the system's C compiler.
Noise is made of the same random words without it, by PyTorch's operations, which it is compared
with before its first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Where a build puts it.
BUILT: Final = Path(__file__).with_name("_noise_kernel.so")

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "privlearn_products": [_POINTER, _POINTER, _NUMBER],
    "privlearn_squares_single": [_POINTER, _POINTER, _POINTER, _NUMBER],
    "privlearn_circles_single": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _NUMBER],
    "privlearn_double": [_POINTER, _POINTER, _POINTER, _POINTER, _NUMBER],
}


@final
class NoiseKernel:
    """The compiled passes, between which PyTorch takes logarithms, roots, sines and cosines.

    Args:
        path: the library.
        sine: coefficients of sin(pi t / 2) / t in powers of t^2.
        cosine: coefficients of cos(pi t / 2).

    Raises:
        OSError, AttributeError: there is none, or it is another one.
    """

    def __init__(self, path: Path, sine: Sequence[float], cosine: Sequence[float]) -> None:
        library = ctypes.CDLL(str(path))
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, None
        self._library = library
        self._sine = (ctypes.c_float * len(sine))(*sine)
        self._cosine = (ctypes.c_float * len(cosine))(*cosine)

    def __call__(self, words: NDArray[np.int64], fours: int, dtype: torch.dtype) -> Tensor:
        """Four draws for each of `fours`, of type float64 or else float32, as `noise.by_operations`
        makes them.
        """
        first, more = words.ctypes.data, words.ctypes.data + 16 * fours
        logarithms = torch.empty(fours, dtype=torch.float64, device="cpu")
        self._library.privlearn_products(first, logarithms.data_ptr(), fours)
        logarithms.log_()
        radii, draws = (
            torch.empty(2, fours, dtype=dtype, device="cpu"),
            torch.empty(2, 2, fours, dtype=dtype, device="cpu"),
        )
        if dtype == torch.float64:
            angles = torch.empty_like(radii)
            self._library.privlearn_double(
                logarithms.data_ptr(), more, radii.data_ptr(), angles.data_ptr(), fours
            )
            torch.cos(angles, out=draws[0])
            torch.sin(angles, out=draws[1])
            return draws.mul_(radii.sqrt_()).view(-1)
        self._library.privlearn_squares_single(logarithms.data_ptr(), more, radii.data_ptr(), fours)
        radii.sqrt_()
        turns = more + 4 * fours  # behind the numbers of 32 bits that split the radii
        self._library.privlearn_circles_single(
            radii.data_ptr(), turns, self._sine, self._cosine, draws.data_ptr(), 2 * fours
        )
        return draws.view(-1)
