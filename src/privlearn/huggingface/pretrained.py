"""Models of transformers and adapters of PEFT as published folders: certified, and loaded with
`from_pretrained`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privlearn._checks import checked
from privlearn._display import shortened
from privlearn.errors import BadInput, CertificateMismatch
from privlearn.publishing import folder
from privlearn.publishing.folder import ADAPTER, ADAPTER_CONFIG, ADAPTER_FILES, CONFIG, WEIGHTS
from privlearn.publishing.keys import read_public
from privlearn.publishing.publish import publish
from privlearn.publishing.verify import verify_contents
from privlearn.runs.optimizers import remember_released
from privlearn.runs.result import Result
from privlearn.runs.shards import whole_state


@checked
def publish_pretrained(result: Result, out: str | Path, **arguments: Any) -> Path:
    """Write the result of a run on a model of transformers: weights and configuration as
    `save_pretrained` writes them.

    Of a model with adapters of PEFT the adapters alone are written. A tokenizer is not: no release
    covers it. Save it in another folder, if it is public: in this one `verify` takes files that are
    not certified for a problem.

    Args:
        result: of the run.
        out: the folder to make.
        arguments: the named arguments of `pv.publish`.

    Raises:
        BadInput: the model is none of transformers; adapters are not all that was trained; or as
            `pv.publish`.
    """
    network = result.model[-1]  # type: ignore[index]
    if not hasattr(network, "save_pretrained"):
        raise BadInput(
            f"{type(network).__name__} has no save_pretrained: publish it with pv.publish"
        )
    adapts = hasattr(network, "peft_config")
    names = (ADAPTER, ADAPTER_CONFIG) if adapts else (WEIGHTS, CONFIG)
    # transformers writes files in the first of several processes alone.
    whole = whole_state(network, keep=result.world.rank == 0)  # by all processes, or none
    written = result.world.once(lambda: _save(network, names, whole), "the files of the model")
    return publish(result, out, weights=written, **arguments)


def _save(network: Any, names: tuple[str, ...], whole: dict[str, Tensor]) -> dict[str, bytes]:
    """What `save_pretrained` writes into these files; of a sharded network its `whole` state."""
    adapts = ADAPTER in names
    more: dict[str, Any] = {} if adapts else {"max_shard_size": "10000GB"}
    if whole:
        more["state_dict"] = whole
    with tempfile.TemporaryDirectory() as draft:
        network.save_pretrained(draft, **more)
        written = {
            name: (Path(draft) / name).read_bytes()
            for name in names
            if (Path(draft) / name).is_file()
        }
    if set(written) != set(names):
        raise BadInput(
            f"save_pretrained of {type(network).__name__} did not write {' and '.join(names)}: "
            "publish it with pv.publish"
        )
    if adapts:
        _require_all_in(network, written[ADAPTER])
    return written


def _require_all_in(network: Any, adapter: bytes) -> None:
    """Refuse an adapter that leaves out something that was trained: those who load it would have
    another model.
    """
    from safetensors.torch import load

    trained = sum(weight.numel() for weight in network.parameters() if weight.requires_grad)
    saved = sum(tensor.numel() for tensor in load(adapter).values())
    if saved < trained:
        raise BadInput(
            f"{trained} numbers were trained, and PEFT saves {saved}: name the other layers in "
            "modules_to_save, or freeze them before training"
        )


@checked
def load_pretrained(
    where: str | Path, model: Any, *, trusted: str | Path | None = None, **arguments: Any
) -> Any:
    """Load a published model of transformers, or an adapter, after checking that its files are the
    certified ones.

    What is loaded are the very bytes that were checked; of code, only what the caller names runs.

    Args:
        where: the folder that `publish_pretrained` wrote.
        model: a class with `from_pretrained`, such as `AutoModelForCausalLM`; of an adapter the
            model that it is for.
        trusted: the publisher's public key, a file: the certificate must be signed with it.
        arguments: of `from_pretrained`.

    Raises:
        CertificateMismatch: the folder does not verify.
        BadInput: it cannot be read, or `model` is not what the folder is for.
    """
    contents = folder.read(where)
    verification = verify_contents(contents, None if trusted is None else read_public(trusted))
    if not verification.ok:
        raise CertificateMismatch(
            f"{where} does not verify: {'; '.join(verification.problems)}. Get an unchanged copy",
            problems=verification.problems,
        )
    adapts = contents.names >= ADAPTER_FILES
    if adapts != isinstance(model, nn.Module):
        kind, expected = (
            ("an adapter", "the model that it is for")
            if adapts
            else ("a model", "a class, AutoModelFor...")
        )
        name = type(model).__name__ if isinstance(model, nn.Module) else shortened(repr(model), 60)
        raise BadInput(f"{where} holds {kind}: expected {expected}, and model is {name}")
    from safetensors.torch import load

    remember_released(load(folder.weights(contents)).values())
    with tempfile.TemporaryDirectory() as checked:
        for name in contents.names & set(contents.files):
            (Path(checked) / name).write_bytes(contents.files[name])
        (Path(checked) / folder.weights_in(contents.names)).write_bytes(folder.weights(contents))
        if not adapts:
            return model.from_pretrained(checked, **arguments)
        from peft import PeftModel

        return PeftModel.from_pretrained(model, checked, **arguments)
