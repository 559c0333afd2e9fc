"""A published model's configuration and its use: config.json describes the network, built from it
and the weights.

The publisher chooses the configuration, so a certified one may still be absurd. The built-in
networks are laid out without memory first, and get some only when they have exactly the tensors
that lie in the weights. What is loaded are the very bytes that were checked, from a folder that
verifies.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn._checks import checked, count
from privlearn._display import Described, Summary, shortened
from privlearn._storage import loads
from privlearn.core.devices import place_of
from privlearn.core.tensors import as_tensor
from privlearn.core.transform import kinds
from privlearn.data.encoding import columns_of
from privlearn.data.named import load_features
from privlearn.data.schema import Schema
from privlearn.data.tables import framed, is_frame
from privlearn.errors import BadInput, CertificateMismatch, first_line
from privlearn.models import networks
from privlearn.models.heads import ClassHead, NumbersHead, stated_head
from privlearn.publishing import exporting, folder
from privlearn.publishing.folder import ADAPTER_FILES, CONFIG, WEIGHTS, Contents
from privlearn.publishing.keys import read_public
from privlearn.publishing.libraries import library_of
from privlearn.publishing.released import PublishedRows, read_rows
from privlearn.publishing.verify import Verification, verify_contents
from privlearn.runs.optimizers import remember_released
from privlearn.runs.result import Result

#: How a network can be given: its name, itself, or a function from the shape of one (transformed)
#: example to it.
Network = str | nn.Module | Callable[[tuple[int, ...]], nn.Module]
#: What a configuration may ask for: numbers in one example, dimensions, transforms.
_MOST_NUMBERS, _MOST_DIMENSIONS, _MOST_TRANSFORMS = 1 << 31, 8, 8
#: Fields of a transform that are shapes; all others are texts.
_SHAPES = {"shape", "local"}


def describe(result: Result, spec: str | None, classes: int | None) -> dict[str, Any]:
    """The configuration of a model that is published, as plain JSON values."""
    return {
        "library": "privlearn",
        **result.architecture,
        "model": spec,
        "classes": classes,
        "transforms": [_describe_transform(part) for part in list(result.model)[:-1]],  # type: ignore[call-overload]
    }


def parse(content: bytes) -> dict[str, Any]:
    """Read a configuration; every field that a network is built from is checked.

    Raises:
        BadInput: no such configuration, or sizes beyond all measure.
    """
    try:
        data = loads(content)
    except ValueError as error:
        raise BadInput(f"{CONFIG} is not readable JSON: {error}. Get an unchanged copy") from error
    names = {"input_shape", "network_input_shape", "model", "classes", "transforms"}
    if not isinstance(data, dict) or not names <= set(data):
        raise BadInput(
            f"{CONFIG} describes no model: expected the fields {', '.join(sorted(names))}"
        )
    for name in ("input_shape", "network_input_shape"):
        _require_shape(f"{name} in {CONFIG}", data[name])
    if data["model"] is not None and not isinstance(data["model"], str):
        raise BadInput(
            f"model in {CONFIG} is a {type(data['model']).__name__}: expected a network's name, or "
            "null"
        )
    if data["classes"] is not None:
        count(f"classes in {CONFIG}", data["classes"], most=10**7)
    transforms = data["transforms"]
    if not isinstance(transforms, list) or len(transforms) > _MOST_TRANSFORMS:
        raise BadInput(
            f"transforms in {CONFIG} is not a list of at most {_MOST_TRANSFORMS}: get an unchanged "
            "copy"
        )
    for part in transforms:
        _require_transform(part)
    _require_bounds(data)
    _require_names(data)
    stated_head(data)
    if "table" in data and Schema.from_json(data["table"], CONFIG).digest != data.get("schema"):
        raise BadInput(f"table in {CONFIG} is not the one of its digest: get an unchanged copy")
    return data


def _require_bounds(data: dict[str, Any]) -> None:
    """Refuse bounds of targets that are no two numbers, the smaller first, of a model with one
    output.
    """
    if "target_bounds" not in data:
        return
    bounds: Any = data["target_bounds"]
    numbers = isinstance(bounds, list) and all(
        type(bound) in (int, float) and abs(bound) < 1e30 for bound in bounds
    )
    if (
        not numbers
        or len(bounds) != 2
        or not bounds[0] < bounds[1]
        or data["classes"] not in (None, 1)
    ):
        raise BadInput(f"target_bounds in {CONFIG} is {str(bounds)[:60]}: get an unchanged copy")


def _require_transform(part: Any) -> None:
    kind = kinds().get(str(part.get("kind"))) if isinstance(part, dict) else None
    if kind is None or set(part) != {"kind", *kind.stated}:
        raise BadInput(
            f"a transform in {CONFIG} is {str(part)[:60]}: expected one of "
            f"{', '.join(sorted(kinds()))}, and its shape or spec"
        )
    for name in _SHAPES & kind.stated:
        _require_shape(f"a transform's {name} in {CONFIG}", part[name])
    if not all(isinstance(part[name], str) for name in kind.stated - _SHAPES):
        raise BadInput(f"features in {CONFIG} are {str(part)[:60]}: expected texts")


def rebuild(
    config: Mapping[str, Any], network: Network, content: bytes, features: str | None = None
) -> nn.Sequential:
    """The model of `config` with this network, and the weights in `content`.

    Args:
        config: what `parse` returned.
        network: how to build it, or the network itself, which is copied.
        content: the weights.
        features: the user's own encoder `package.module:function`, if the model has one.

    Raises:
        BadInput: they do not fit each other.
    """
    tensors = _tensors(content)
    known = isinstance(network, str) and networks.is_built_in(network)
    called = repr(network) if isinstance(network, str) else "that was given"
    # On the device "meta" tensors have shapes and no memory. Code of the user's own may need real
    # ones.
    with torch.device("meta" if known else "cpu"):
        transforms = [_transform(part, features) for part in config["transforms"]]
        model = nn.Sequential(*transforms, _network(config, network))
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if not known:
        tensors = _of_the_part(tensors, wanted, f"{len(transforms)}.")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    if wanted != shapes:
        odd = sorted(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))[0]
        raise BadInput(
            f"{WEIGHTS} does not fit the model {called}: {str(odd)[:60]!r} has shape "
            f"{shapes.get(odd, 'none')} in the file, and {wanted.get(odd, 'none')} in the model. "
            "Give the model that it was trained with, model="
        )
    if known:
        model = model.to_empty(device="cpu")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise BadInput(f"{WEIGHTS} does not fit the model {called}: {str(error)[:300]}") from error
    return model.eval()


def _of_the_part(
    tensors: dict[str, Tensor], wanted: Mapping[str, tuple[int, ...]], place: str
) -> dict[str, Tensor]:
    """The weights by the names of the network that is given, where it is the only part with weights
    of the module that was trained, as the network in a LightningModule is. Else as they are.

    Args:
        tensors: by name.
        wanted: the shapes that the model has with the network that is given.
        place: what the names of the network's weights begin with.
    """
    named = dict(tensors)
    while {name: tuple(value.shape) for name, value in named.items()} != dict(wanted):
        inner = [name.removeprefix(place).split(".") for name in named if name.startswith(place)]
        if len({parts[0] for parts in inner}) != 1 or any(len(parts) == 1 for parts in inner):
            return tensors
        prefix = f"{place}{inner[0][0]}."
        named = {
            place + name.removeprefix(prefix) if name.startswith(prefix) else name: value
            for name, value in named.items()
        }
    return named


def _network(config: Mapping[str, Any], source: Network) -> nn.Module:
    """The network: built by its name, made for the shape of its rows, or a copy of the one that is
    given.
    """
    shape, head = tuple(config["network_input_shape"]), stated_head(config)
    network: Any
    if isinstance(source, str):
        network = _by_name(config, source, None if head is None else head.outputs)
    else:
        network = copy.deepcopy(source) if isinstance(source, nn.Module) else source(shape)
    if not isinstance(network, nn.Module):
        raise BadInput(
            f"model made a {type(network).__name__} of the shape {shape}: expected a "
            "torch.nn.Module"
        )
    return network if head is None else head.published(head.complete(network))


def _by_name(config: Mapping[str, Any], name: str, outputs: int | None) -> nn.Module:
    """The network that a name stands for. A factory of the user's own may know its classes itself,
    where the folder does not say how many there are.
    """
    shape = tuple(config["network_input_shape"])
    classes = config["classes"] if outputs is None else outputs
    if classes is None and networks.is_built_in(name):
        classes = _classes(config)
    try:
        return networks.build(name, shape, classes, np.random.default_rng(0))
    except BadInput as error:
        if classes is not None:
            raise
        networks.require_known(name)  # what is wrong with the name itself is said as it is
        cause = error.__cause__
        reason = str(error).rstrip(".")  # of privlearn: whole, as it ends with advice
        if cause is not None:
            reason = f"{type(cause).__name__}: {shortened(first_line(cause), 80)}"
            reason = f"model {shortened(name, 60)} failed: {reason}"
        raise BadInput(
            f"{reason}. The folder does not say how many classes there are, so classes is None: "
            "let the factory know the number itself, or publish with classes=K"
        ) from error


def require_rebuilt(result: Result, spec: str, classes: int | None) -> None:
    """Refuse a spec that builds another network than the one that was trained."""
    if classes is None:
        raise BadInput("model_spec was given without classes: give both, or neither")
    twin = _network({**result.architecture, "classes": classes}, spec)
    *_, network = result.model.children()
    shapes = [
        {name: tuple(value.shape) for name, value in net.state_dict().items()}
        for net in (twin, network)
    ]
    if shapes[0] != shapes[1]:
        raise BadInput(
            f"model_spec {spec!r} builds another network than the one that was trained: correct "
            "it, or leave it out"
        )


def _tensors(content: bytes) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(
            f"{WEIGHTS} cannot be read as safetensors: {error}. Get an unchanged copy"
        ) from error


def _classes(config: Mapping[str, Any]) -> int:
    if config["classes"] is None:
        raise BadInput(
            f"{CONFIG} does not say how many classes the model has: publish it with classes="
        )
    return int(config["classes"])


def _require_shape(name: str, value: object) -> None:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        raise BadInput(
            f"{name} is {str(value)[:60]}: expected a list of at most {_MOST_DIMENSIONS} whole "
            "numbers"
        )
    for size in value:
        count(f"a size of {name}", size, most=_MOST_NUMBERS)
    if math.prod(value) > _MOST_NUMBERS:
        raise BadInput(
            f"{name} is {str(value)[:60]}: expected at most {_MOST_NUMBERS} numbers in one example"
        )


def _describe_transform(module: nn.Module) -> dict[str, Any]:
    from privlearn.transforms.modules import RowTransform

    if not isinstance(module, RowTransform):
        raise BadInput(f"{type(module).__name__} cannot be published as a transform")
    return module.config()


def _transform(config: Mapping[str, Any], features: str | None) -> nn.Module:
    """An empty transform: one of privlearn's own, or code that the user names, never what a file
    names.
    """
    return kinds()[config["kind"]].empty(config, features)


@final
class PublishedModel(Described, nn.Sequential):
    """A published model, its folder verified: the transforms and the network, as in `Result.model`.

    It takes raw inputs and gives what the trained model gave: scores of classes.

    Attributes:
        input_shape: of one example.
        classes: how many there are.
        schema: of the table that it was trained on, which `predict` reads data frames by; None if
            it was none.
        class_names: what the classes are called, as the schema or the estimator says; empty if
            neither does. Of a model of labels, those that say that a label does not hold, and that
            it does.
        labels: what is predicted, of a model of several labels; else empty.
        targets: what is predicted, of a model of several numbers; else empty.
        task: its name, where the folder says one (`models.heads`); else None.
        target_bounds: the bounds of the values that it predicts, where they were declared.
        grid: the size that scans in files are brought to, as a text, where it was trained on such;
            else None.
        verification: what `verify` says of the folder, with its guarantee.
        config: what else the folder says of how the model is built.
    """

    def __init__(
        self,
        model: nn.Sequential,
        config: Mapping[str, Any],
        verification: Verification,
        contents: Contents,
    ) -> None:
        super().__init__(*model)
        self.input_shape: tuple[int, ...] = tuple(config["input_shape"])
        self.classes: int | None = config["classes"]
        self.schema = Schema.from_json(config["table"], CONFIG) if "table" in config else None
        self.class_names = (
            tuple(config.get("class_names", ())) if self.schema is None else self.schema.classes
        )
        self._head = stated_head(config)
        self.task = None if self._head is None else self._head.task
        self.labels: tuple[str, ...] = tuple(config.get("labels", ()))
        self.targets = self._head.names if isinstance(self._head, NumbersHead) else ()
        self.target_bounds: list[float] | None = config.get("target_bounds")
        self.grid = str(config["grid"]) if "grid" in config else None
        self.verification, self.config, self._contents = verification, dict(config), contents
        self.eval()

    @property
    def network(self) -> nn.Module:
        """The network behind the transforms, whose weights have the names that they had in
        training: `net.load_state_dict(pv.load_model(folder, net).network.state_dict())`.
        """
        return self[-1]

    def released_rows(self) -> PublishedRows:
        """The noisy rows that were released beside the model: for any method, scikit-learn's say.

        What is read are the bytes that were checked. `transform` brings other rows to their form.

        Raises:
            BadInput: the folder holds no released rows.
            CertificateMismatch: the file was changed since the folder was checked.
        """
        return read_rows(self._contents, self.verification)

    def _summary(self) -> Summary:
        classes = (
            ""
            if self.classes is None
            else f", {self.classes} classes"
            if self.classes > 1
            else ", values"
        )
        if self.targets:
            classes = f", {len(self.targets)} values"
        shape, (guarantee, *more) = self.input_shape, self.verification._summary().rows
        layers = (
            f"{', '.join(type(module).__name__ for module in self)}, for rows of shape "
            f"{shape}{classes}"
        )
        use = (
            "model.predict(rows) gives classes, model.predict_proba(rows) probabilities, "
            "model(rows) scores"
        )
        use = use if self._scored else "model.predict(rows) gives values"
        return Summary(
            "PublishedModel: its folder agrees with its certificate",
            [("model", layers), guarantee, *more[:2], ("use", use)],
        )

    @property
    def _scored(self) -> bool:
        """Whether outputs are scores of classes or labels."""
        return self.classes != 1 and (self._head is None or self._head.scored)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of shape (rows, classes, ...) for inputs of shape (rows, *input_shape)."""
        self._require_shape(x)
        for module in self:
            x = module(x)
        return x

    def _require_shape(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.input_shape:
            raise BadInput(
                f"the rows have shape {tuple(x.shape[1:])}: this model takes {self.input_shape}"
            )

    @torch.no_grad()
    def transform(self, x: Any) -> Tensor:
        """The rows as the network takes them: behind the transforms in front of it. Rows that were
        released beside the model have this form, with noise.

        Args:
            x: rows of shape (rows, *input_shape), or a data frame, as for `predict`.

        Returns:
            Shape (rows, ...), on the device of the model.

        Raises:
            BadInput: as for `predict`.
        """
        rows = self._tensor(self._features(x) if is_frame(x) else x).to(place_of(self))
        self._require_shape(rows)
        for module in list(self)[:-1]:
            rows = module(rows)
        return rows

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """The class with the highest score, of each row of `x` (of each voxel, where the model
        makes maps).

        A model with one output predicts a value: that is given in the units of the target, within
        its declared bounds.

        Args:
            x: rows of shape (rows, *input_shape), or one row: a tensor, an array, or lists of
                numbers. Where the model was trained on a table: a data frame (pandas, polars,
                Arrow) with its columns, in any order.

        Returns:
            Classes, whole numbers from 0, or values: one for each row, shape (rows,); of one row a
            single one. For a data frame an array of the classes' names, or of values. Of a model of
            labels 0 or 1 for each, shape (rows, labels); for a data frame a data frame, a column
            for each label, with the names of its two classes. Of a model of several numbers these,
            shape (rows, targets), and for a data frame a column for each target.

        Raises:
            BadInput: rows of another shape, or with numbers that are not finite; or a data frame
                whose columns or cells do not suit the schema.
        """
        if is_frame(x):
            predicted = self.predict(self._features(x)).cpu().numpy()
            if self.targets:
                return framed(x, dict(zip(self.targets, predicted.T, strict=True)))
            if self.labels:
                cells = np.array(self.class_names)[predicted].T
                return framed(x, dict(zip(self.labels, cells, strict=True)))
            return np.array(self.class_names)[predicted] if self.class_names else predicted
        rows = self._tensor(x)
        one = tuple(rows.shape) == self.input_shape
        predicted = self.read(self._scores(rows[None] if one else rows))[0]
        return predicted[0] if one else predicted

    def read(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions, and the probabilities of classes or labels (without columns, where values
        are predicted).
        """
        if self.classes == 1:
            return self.values(outputs), outputs[:, :0]
        head = self._head or ClassHead({"classes": self.classes})
        return head.predicted(outputs), head.probabilities(outputs)

    def values(self, outputs: Tensor) -> Tensor:
        """The predicted values, shape (rows,), of what a model with one output gives."""
        return (
            outputs[:, 0]
            if self.target_bounds is None
            else outputs[:, 0].clamp(*self.target_bounds)
        )

    @torch.no_grad()
    def predict_proba(self, x: Any) -> Any:
        """The classes' scores, made to add up to 1: with a temperature fitted, they are estimates
        of probabilities.

        Args:
            x: as for `predict`.

        Returns:
            Shape (rows, classes, ...), of one row (classes, ...); of a model of labels that each
            holds, shape (rows, labels). For a data frame a data frame of the same library, a column
            for each class or label by its name (with the index of `x`, if it is one of pandas).

        Raises:
            BadInput: as for `predict`; or the model predicts values.
        """
        if not self._scored:
            raise BadInput("the model predicts values, which have no probabilities: call predict")
        if is_frame(x):
            columns = self.predict_proba(self._features(x)).cpu().numpy().T
            return framed(x, dict(zip(self.labels or self.class_names, columns, strict=True)))
        rows = self._tensor(x)
        one = tuple(rows.shape) == self.input_shape
        scores = self.read(self._scores(rows[None] if one else rows))[1]
        return scores[0] if one else scores

    def export(self, out: str | Path) -> Path:
        """Write the model as a program of `torch.export` or as ONNX, which run without privlearn;
        no certificate goes with it.

        `torch.export.load(out).module()(rows)` gives the scores, for any number of rows; the ONNX
        file has the input `rows` and the output `scores`. It is written only if it gives the scores
        of this model on made-up rows.

        Args:
            out: a new file, `model.pt2`; or `model.onnx`, which needs the packages onnx, onnxscript
                and onnxruntime.

        Raises:
            BadInput: the file is there already or can't be written, has another ending, or PyTorch
                can't export the model; or packages are missing.
        """
        path, network = Path(out), nn.Sequential(*self)
        exporting.require_format(path)
        if path.exists():
            raise BadInput(f"{path} exists already: give another file; nothing is overwritten")
        generator = torch.Generator().manual_seed(0)
        rows = [
            torch.rand(size, *self.input_shape, generator=generator, device="cpu")
            for size in (3, 7, 1)
        ]
        exporting.write_program(network, rows, path)
        return path

    def _features(self, frame: Any) -> Any:
        """The features of a data frame, by the schema or the names of columns that the model was
        trained with.
        """
        if self.schema is None and "columns" in self.config:
            return columns_of(frame, self.config["columns"]).reshape(-1, *self.input_shape)
        if self.schema is None:
            raise BadInput(
                f"the model was trained on rows of shape {self.input_shape}, not on a table with a "
                "schema: give an array"
            )
        return load_features(frame, self.schema).x

    def _scores(self, rows: Tensor) -> Tensor:
        """What the model gives for rows, where these are; it may be on another device.

        Raises:
            BadInput: a row is not finite; where NaN is a missing value, no number of a row is.
        """
        self._require_finite(rows)
        scores: Tensor = self(rows.to(place_of(self))).to(rows.device)
        return scores

    def _require_finite(self, rows: Tensor) -> None:
        """Refuse rows of which a network makes no score, or a class for want of one."""
        finite = rows.isfinite().reshape(len(rows), -1)
        missing = any(getattr(module, "takes_missing", False) for module in self.modules())
        usable = finite.any(1) if missing else finite.all(1)
        if bool(usable.all()):
            return
        row, columns = int(usable.int().argmin()), self.config.get("columns", ())
        named = f", column {columns[int(finite[row].int().argmin())]!r}" if columns else ""
        raise BadInput(
            f"row {row}{named[:60]}, is not finite (NaN or infinity): expected finite numbers. "
            "Fill it as the rows of the training were filled, by a rule that does not look at the "
            "other rows"
        )

    def _tensor(self, x: Any) -> Tensor:
        """Rows as in training: numbers in the type of the weights; integers stay integers where
        nothing scales them.
        """
        if self.schema is not None and isinstance(x, str | Path | Mapping):
            raise BadInput(
                f"the rows are a {type(x).__name__}, and the model was trained on a table: give a "
                "data frame with its columns, such as pandas.read_csv(FILE), or "
                "pandas.DataFrame([ROW]) for one row"
            )
        try:
            values = as_tensor(
                x if isinstance(x, Tensor) else np.asarray(x),
                "the rows",
                whole_is_float=len(self) > 1,
            )
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"the rows can't be read: {first_line(error)}. Expected numbers, rows of one shape"
            ) from error
        kinds = [
            parameter.dtype for parameter in self[-1].parameters() if parameter.is_floating_point()
        ]
        whole = not values.is_floating_point() and len(self) == 1
        return values if whole or not kinds else values.to(kinds[0])


def _require_names(data: dict[str, Any]) -> None:
    """Refuse names of classes or columns that are none, or not as many as there are."""
    for name, size in {
        "class_names": data["classes"],
        "columns": math.prod(data["input_shape"]),
    }.items():
        names = data.get(name)
        texts = (
            isinstance(names, list)
            and len(names) == size
            and all(isinstance(text, str) for text in names)
        )
        if name in data and not texts:
            raise BadInput(f"{name} in {CONFIG} are not {size} texts: get an unchanged copy")


@checked
def load_model(
    where: str | Path,
    model: Network | None = None,
    *,
    trusted: str | Path | None = None,
    features: str | None = None,
) -> PublishedModel:
    """Load a published model, after checking that its files are the certified ones.

    What is loaded are the very bytes that were checked. No code runs that the folder chooses:
    built-in networks are built by name, and everything else is named by the caller.

    Args:
        where: the folder that `publish` wrote.
        model: the network, where it was not built by name: a module like the one that was trained,
            or like its only part with weights, as the network in a LightningModule is. The module
            itself stays as it is: the loaded model is what is returned, and
            `module.load_state_dict(pv.load_model(folder, module).network.state_dict())` fills the
            module. Or a function from the shape of one (transformed) example to a network, or the
            name of a factory, `package.module:function`, that is called with input_shape= and
            classes=.
        trusted: the publisher's public key, a file: the certificate must be signed with it. See
            `verify`.
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
    config = parse(contents.files[CONFIG])
    if contents.names >= ADAPTER_FILES:
        raise BadInput(
            f"{where} holds an adapter, not a model: load it with "
            "pv.huggingface.load_pretrained(folder, model)"
        )
    library = library_of(contents.files)
    if library.name == "transformers":
        raise BadInput(
            f"{where} holds a model of transformers: load it with pv.huggingface.load_pretrained("
            f"{str(where)!r}, transformers.{library.loader}), which checks the folder, too"
        )
    if model is None and not networks.is_built_in(config["model"]):
        # A folder must not choose the code that runs here.
        raise BadInput(
            f"the network in {where} was built by "
            f"{config['model'] or 'code that it does not name'}: if you trust that code and have "
            "it, give it yourself with model='package.module:function' (in Python also the "
            "network itself)"
        )
    if model is not None and not isinstance(model, str) and not callable(model):
        raise BadInput(
            f"model is {shortened(repr(model), 60)}: expected a torch.nn.Module, a function that "
            "makes one, or a name"
        )
    network: Network = config["model"] if model is None else model
    loaded = rebuild(config, network, folder.weights(contents), features)
    remember_released(loaded.parameters())
    return PublishedModel(loaded, config, verification, contents)
