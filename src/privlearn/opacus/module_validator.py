"""`ModuleValidator`: modules that couple examples are named, or replaced by ones that don't."""

from __future__ import annotations

import copy
import math
from typing import final

from torch import nn

from privlearn.errors import NotPerExample
from privlearn.models.check import require_separate
from privlearn.models.norms import replace_batch_norm

#: The most groups that channels are put into.
_GROUPS = 32


@final
class ModuleValidator:
    """Opacus's calls to look at a module, and to replace what can't be trained with privacy."""

    @staticmethod
    def validate(module: nn.Module, *, strict: bool = False) -> list[NotPerExample]:
        """The first part of a module that is known to couple examples, as an error; an empty list if there is none.

        Raises:
            NotPerExample: with `strict`, that error.
        """
        try:
            require_separate(module)
        except NotPerExample as error:
            if strict:
                raise
            return [error]
        return []

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether there is none."""
        return not cls.validate(module)

    @staticmethod
    def fix(module: nn.Module, *, num_groups: int | None = None) -> nn.Module:
        """A copy with group norms for its batch norms, of at most 32 groups, and instance norms without statistics."""
        copied = copy.deepcopy(module)
        norms = [own for own in copied.modules() if isinstance(own, nn.modules.batchnorm._BatchNorm)]
        groups = num_groups or math.gcd(_GROUPS, *(norm.num_features for norm in norms))
        flat = [norm.num_features for norm in norms if isinstance(norm, nn.BatchNorm1d)]
        while num_groups is None and groups > 1 and groups in flat:  # a group of one number is always 0
            groups //= 2
        for own in copied.modules():
            if isinstance(own, nn.modules.instancenorm._InstanceNorm):
                own.track_running_stats, own.running_mean, own.running_var = False, None, None
        return replace_batch_norm(copied, groups=groups) if norms else copied
