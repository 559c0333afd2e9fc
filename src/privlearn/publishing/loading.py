"""Using a published model: from a folder that verifies, and from the very bytes that were checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn.errors import BadInput, CertificateMismatch
from privlearn.models import networks
from privlearn.publishing import folder, model
from privlearn.publishing.folder import ADAPTER_FILES, CONFIG
from privlearn.publishing.keys import read_public
from privlearn.publishing.verify import Verification, verify_contents


@final
class PublishedModel(nn.Sequential):
    """A published model, its folder verified: the transforms and the network, as in `Result.model`.

    It takes raw inputs and gives what the trained model gave: scores of classes.

    Attributes:
        input_shape: of one example.
        classes: how many there are.
        verification: what `verify` says of the folder, with its guarantee.
        config: what else the folder says of how the model is built.
    """

    def __init__(self, model: nn.Sequential, config: Mapping[str, Any], verification: Verification) -> None:
        super().__init__(*model)
        self.input_shape: tuple[int, ...] = tuple(config["input_shape"])
        self.classes: int | None = config["classes"]
        self.verification, self.config = verification, dict(config)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of shape (rows, classes, ...) for inputs of shape (rows, *input_shape)."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise BadInput(f"the rows have shape {tuple(x.shape[1:])}: this model takes {self.input_shape}")
        for module in self:
            x = module(x)
        return x

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """The class with the highest score, of each row of `x` (of each voxel, where the model makes maps)."""
        scores: Tensor = self(x)
        return scores.argmax(1)


def load_model(
    where: str | Path,
    model_spec: str | None = None,
    *,
    trusted: str | Path | None = None,
    features: str | None = None,
) -> PublishedModel:
    """Load a published model, after checking that its files are the certified ones.

    What is loaded are the very bytes that were checked. No code runs that the folder chooses: built-in networks are built by
    name, and everything else is named by whoever calls.

    Args:
        where: the folder that `publish` wrote.
        model_spec: a factory `package.module:function` for models that were not built by name.
        trusted: the publisher's public key, a file: the certificate must be signed with it. See `verify`.
        features: the user's own public encoder `package.module:function`, of a model that has one.

    Raises:
        CertificateMismatch: the folder does not verify.
        BadInput: it cannot be read, or how to rebuild the network is not known.
    """
    key = None if trusted is None else read_public(trusted)
    contents = folder.read(where)
    verification = verify_contents(contents, key)
    if not verification.ok:
        raise CertificateMismatch(
            f"{where} does not verify: {'; '.join(verification.problems)}. Get an unchanged copy",
            problems=verification.problems,
        )
    config = model.parse(contents.files[CONFIG])
    if contents.names == ADAPTER_FILES:
        raise BadInput(f"{where} holds an adapter, not a model: load it with pv.huggingface.load_pretrained(folder, model)")
    spec = model_spec or config["model"]
    if model_spec is None and not networks.is_built_in(spec):
        # A folder must not choose the code that runs here.
        raise BadInput(
            f"the network in {where} was built by {spec or 'code that it does not name'}: if you trust that code and have "
            "it, give it yourself with model_spec='package.module:function'"
        )
    return PublishedModel(model.rebuild(config, spec, folder.weights(contents), features), config, verification)
