"""The bottleneck of the autoencoder: an activation that fills the unit ball (Fay et al. 2020, appendix).

For standard normal inputs the direction is uniform on the sphere, exactly, and the radius to the power of the dimension is
uniform on [0, 1] up to 0.0177, which is how far the logistic function is from the normal distribution's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_SLOPE = math.sqrt(8 / math.pi)


def unit_ball(o: Tensor) -> Tensor:
    """Map `o`, shape (rows, l + 1), into the unit ball in l dimensions: shape (rows, l).

    The first number says how far from the origin, logistic(o_0 sqrt(8 / pi)) ^ (1 / l), the others in which direction. It is
    computed as exp(-softplus(-o_0 sqrt(8 / pi)) / l), which has no overflow at either end. The last step is a hard clip, so
    that no rounding leaves the ball.
    """
    size = o.shape[1] - 1
    radius = torch.exp(-F.softplus(-_SLOPE * o[:, :1]) / size)
    direction = F.normalize(o[:, 1:], dim=1, eps=torch.finfo(o.dtype).tiny)
    z = radius * direction
    inside: Tensor = z / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=1.0)
    return inside
