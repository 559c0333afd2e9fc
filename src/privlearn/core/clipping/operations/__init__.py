"""This table has the operations with a rule: it says, by torch's function, what each does with
trained parameters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from privlearn.core.clipping.capture import Rule
from privlearn.core.clipping.operations.attention import attention
from privlearn.core.clipping.operations.contraction import einsum
from privlearn.core.clipping.operations.convolution import convolution, transposed_convolution
from privlearn.core.clipping.operations.elementwise import (
    add,
    expand,
    expand_as,
    multiply,
    repeat,
    spread,
)
from privlearn.core.clipping.operations.embedding import embedding, one_hot, rows_of
from privlearn.core.clipping.operations.linear import addmm, linear, matmul
from privlearn.core.clipping.operations.normalisation import (
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from privlearn.core.clipping.operations.recurrent import gru, lstm

#: Functions that broadcast, beside those that have a rule of their own.
_BROADCASTING = (
    torch.where,
    torch.Tensor.where,
    torch.sub,
    torch.Tensor.sub,
    torch.Tensor.__sub__,
    torch.Tensor.__rsub__,
    torch.rsub,
    torch.div,
    torch.Tensor.div,
    torch.true_divide,
    torch.Tensor.__truediv__,
    torch.Tensor.__rtruediv__,
    torch.maximum,
    torch.minimum,
    torch.addcmul,
    torch.Tensor.addcmul,
    torch.Tensor.masked_fill,
    torch.masked_fill,
    torch.Tensor.add_,
    torch.Tensor.__iadd__,
    torch.Tensor.mul_,
    torch.Tensor.__imul__,
    torch.Tensor.sub_,
    torch.Tensor.__isub__,
    torch.Tensor.div_,
    torch.Tensor.__itruediv__,
    F.scaled_dot_product_attention,
)

#: Torch's functions, and the rules that stand in for them.
RULES: dict[Any, Rule] = {
    **{func: partial(spread, func) for func in _BROADCASTING},
    F.linear: linear,
    F.conv1d: partial(convolution, 1),
    F.conv2d: partial(convolution, 2),
    F.conv3d: partial(convolution, 3),
    F.conv_transpose1d: partial(transposed_convolution, 1),
    F.conv_transpose2d: partial(transposed_convolution, 2),
    F.conv_transpose3d: partial(transposed_convolution, 3),
    F.embedding: embedding,
    F.one_hot: one_hot,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.multi_head_attention_forward: attention,
    torch.lstm: lstm,
    torch.gru: gru,
    torch.addmm: addmm,
    torch.einsum: einsum,
    torch.Tensor.__getitem__: rows_of,
    torch.Tensor.expand: expand,
    torch.Tensor.expand_as: expand_as,
    torch.Tensor.repeat: repeat,
    **dict.fromkeys(
        [torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__], add
    ),
    **dict.fromkeys([torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__], matmul),
    **dict.fromkeys(
        [torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__], multiply
    ),
}
