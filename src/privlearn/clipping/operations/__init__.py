"""The operations that have a rule: what each does with trained parameters, by torch's function.

A rule is read when a model has its operation. What it gives is compared with autograd's gradient of an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import torch
from torch.nn import functional as F

from privlearn.clipping.capture import Rule


@final
@dataclass(frozen=True)
class RuleIn:
    """A rule in a file of this folder.

    Attributes:
        file: its name, without the ending.
        name: of the function.
        first: what that is given before the operation's own arguments.
    """

    file: str
    name: str
    first: Any = None

    @property
    def function(self) -> Rule:
        """The function."""
        rule: Rule = getattr(import_module(f"{__name__}.{self.file}"), self.name)
        return rule

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the rule gives for an operation."""
        first = () if self.first is None else (self.first,)
        return self.function(*first, *arguments, **options)


#: Functions that broadcast, beside those that have a rule of their own.
_BROADCASTING = (
    torch.where, torch.Tensor.where, torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.Tensor.__rsub__,
    torch.rsub, torch.div, torch.Tensor.div, torch.true_divide, torch.Tensor.__truediv__, torch.Tensor.__rtruediv__,
    torch.maximum, torch.minimum, torch.addcmul, torch.Tensor.addcmul, torch.Tensor.masked_fill, torch.masked_fill,
    torch.Tensor.add_, torch.Tensor.__iadd__, torch.Tensor.mul_, torch.Tensor.__imul__, torch.Tensor.sub_,
    torch.Tensor.__isub__, torch.Tensor.div_, torch.Tensor.__itruediv__, F.scaled_dot_product_attention,
)  # fmt: skip

#: Torch's functions, and the rules that stand in for them.
RULES: dict[Any, Rule] = {
    **{func: RuleIn("elementwise", "spread", func) for func in _BROADCASTING},
    F.linear: RuleIn("linear", "linear"),
    F.conv1d: RuleIn("convolution", "convolution", 1),
    F.conv2d: RuleIn("convolution", "convolution", 2),
    F.conv3d: RuleIn("convolution", "convolution", 3),
    F.conv_transpose1d: RuleIn("convolution", "transposed_convolution", 1),
    F.conv_transpose2d: RuleIn("convolution", "transposed_convolution", 2),
    F.conv_transpose3d: RuleIn("convolution", "transposed_convolution", 3),
    F.embedding: RuleIn("embedding", "embedding"),
    F.one_hot: RuleIn("embedding", "one_hot"),
    F.layer_norm: RuleIn("normalisation", "layer_norm"),
    F.rms_norm: RuleIn("normalisation", "rms_norm"),
    F.group_norm: RuleIn("normalisation", "group_norm"),
    F.instance_norm: RuleIn("normalisation", "instance_norm"),
    F.multi_head_attention_forward: RuleIn("attention", "attention"),
    torch.lstm: RuleIn("recurrent", "lstm"),
    torch.gru: RuleIn("recurrent", "gru"),
    torch.addmm: RuleIn("linear", "addmm"),
    torch.einsum: RuleIn("contraction", "einsum"),
    torch.Tensor.__getitem__: RuleIn("embedding", "rows_of"),
    torch.Tensor.expand: RuleIn("elementwise", "expand"),
    torch.Tensor.expand_as: RuleIn("elementwise", "expand_as"),
    torch.Tensor.repeat: RuleIn("elementwise", "repeat"),
    **dict.fromkeys(
        [torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__], RuleIn("elementwise", "add")
    ),
    **dict.fromkeys([torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__], RuleIn("linear", "matmul")),
    **dict.fromkeys(
        [torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__], RuleIn("elementwise", "multiply")
    ),
}
