"""`ModuleValidator`: modules that couple examples are named, or replaced by ones that don't."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar, final

from torch import nn

from privlearn._checks import checked
from privlearn.core.clipping.model_check import require_separate
from privlearn.errors import BadInput, NotPerExample
from privlearn.models.norms import replace_batch_norm

_LOGGER = logging.getLogger(__name__)
#: The most groups that channels are put into.
_GROUPS = 32
_INSTANCE: dict[type, type[Any]] = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}


#: Layers that may couple examples, or keep figures of batches.
_NORMS: tuple[type[nn.Module], ...] = (
    *_INSTANCE,
    nn.SyncBatchNorm,
    *_INSTANCE.values(),
)


def _look(module: nn.Module) -> list[NotPerExample]:
    """What is wrong with a module in any mode."""
    try:
        require_valid(module)
    except NotPerExample as error:
        return [error]
    return []


def require_valid(module: nn.Module) -> None:
    """Raise `NotPerExample` for the first part that is known to couple examples; where `fix`
    replaces it, the message says so.
    """
    try:
        require_separate(module)
    except NotPerExample as error:
        if not isinstance(module.get_submodule(error.data["module"]), _NORMS):
            raise
        raise NotPerExample(
            f"{error}. model = ModuleValidator.fix(model) replaces it: call it before the "
            "optimizer is made",
            **error.data,
        ) from error


def _replace(norm: nn.Module) -> nn.Module:
    """What takes the place of a norm: the norm itself where nothing is wrong with it."""
    return ModuleValidator.fix(nn.Sequential(norm))[0] if _look(norm) else norm  # type: ignore[index]


@final
class ModuleValidator:
    """Opacus's calls to look at a module, and to replace what can't be trained with privacy.

    Attributes:
        VALIDATORS: for each layer that is looked at by its type, a function to what is wrong with
            one. Recurrent and attention layers have none: they are trained as they are.
        FIXERS: for each of these a function to what takes its place.
    """

    VALIDATORS: ClassVar[dict[type[nn.Module], Callable[[nn.Module], list[NotPerExample]]]] = (
        dict.fromkeys(_NORMS, _look)
    )
    FIXERS: ClassVar[dict[type[nn.Module], Callable[[nn.Module], nn.Module]]] = dict.fromkeys(
        _NORMS, _replace
    )

    @staticmethod
    @checked
    def validate(module: nn.Module, *, strict: bool = False) -> list[NotPerExample]:
        """What is wrong with a module: its first part that is known to couple examples, and
        evaluation mode.

        Raises:
            NotPerExample: with `strict`, the first error.
        """
        errors = _look(module)
        if not module.training:
            errors.append(
                NotPerExample(
                    "the module is in evaluation mode: call module.train() before it is trained"
                )
            )
        if strict and errors:
            raise errors[0]
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether nothing is."""
        return not cls.validate(module)

    @staticmethod
    @checked
    def fix(
        module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False
    ) -> nn.Module:
        """A copy with group norms for its batch norms, or with instance norms, none of which keeps
        statistics.

        Args:
            module: stays as it is.
            num_groups: of channels in a group norm; by default at most 32.
            replace_bn_with_in: whether instance norms take the place.

        Raises:
            BadInput: both are given, or the groups don't divide the channels of a norm.
        """
        if replace_bn_with_in and num_groups:
            raise BadInput(
                "num_groups is of group norms, and replace_bn_with_in asks for instance norms: "
                "give one of them"
            )
        copied = copy.deepcopy(module)
        if replace_bn_with_in:
            _to_instance_norms(copied)
        norms = [
            layer
            for layer in copied.modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]
        groups = num_groups or math.gcd(_GROUPS, *(norm.num_features for norm in norms))
        flat = [norm.num_features for norm in norms if isinstance(norm, nn.BatchNorm1d)]
        # a group of one number is always 0
        while num_groups is None and groups > 1 and groups in flat:
            groups //= 2
        for layer in copied.modules():
            if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        fixed = replace_batch_norm(copied, groups=groups) if norms else copied
        after = dict(fixed.named_modules())
        for name, layer in module.named_modules():
            if name in after and type(after[name]) is not type(layer):
                _LOGGER.info("Replaced sub_module %s with %s", name or "(the module)", after[name])
        return fixed


def _to_instance_norms(module: nn.Module) -> None:
    for parent in list(module.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm) in _INSTANCE:
                replacement = _INSTANCE[type(norm)](norm.num_features, norm.eps, affine=norm.affine)
                replacement.weight, replacement.bias = norm.weight, norm.bias
                setattr(parent, name, replacement)
