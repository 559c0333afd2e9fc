"""Commitments to rows: a publisher is bound to them before training, and can prove later that a row
was among them.

The root of a tree of SHA-256 digests (Merkle 1987): its leaves are digests of rows with a salt for
each, which follows from the secret. The root alone tells nothing of the rows, as long as SHA-256
holds and the secret is kept. That is a promise of cryptography, not differential privacy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import Checkpoint
from privlearn.runs.result import Result
from privlearn.runs.transcript import (
    COMMITMENT,
    LINES,
    CommittedSecret,
    Determined,
    RunToCommit,
    new_secret,
)

_LEAF, _INNER = b"\0", b"\1"


def commit(
    data: Dataset,
    folder: str | Path,
    train: Callable[[Checkpoint], Result],
    *,
    discrete: bool = False,
) -> str:
    """Commit to the training rows of `data`, to one run on them, and to a new secret: for
    `Transcript(folder)`.

    What the run is made of is found out by beginning it: `train` is called, and ended before
    anything is charged or drawn. Committed to are its plan, options, data, loss, and the weights
    that it begins with: a run that differs in any of these is refused, and would have other keys.

    Args:
        data: what will be trained on, as it will be given.
        folder: where to write the commitment, for the auditor before the run, and the secret, to be
            kept.
        train: trains as the run will, with the checkpoint that it is given and no streams; as of
            `replay`.
        discrete: whether releases will make their noise on a grid, as of `Transcript`.

    Returns:
        The commitment: what the certificate of the run will state.

    Raises:
        BadInput: something was committed to there; rows that are not arrays; or a `train` that is
            none.
    """
    path, data = Path(folder), Dataset.of(data)
    if not callable(train):
        raise BadInput(
            f"train is a {type(train).__name__}: expected a function of a checkpoint that trains "
            "with it"
        )
    if (path / COMMITMENT).exists() or (path / LINES).exists():
        raise BadInput(
            f"{folder} holds a commitment already, good for one run: choose another folder"
        )
    secret = new_secret()
    rows, run = (
        Tree.of(data, secret).root,
        _run_of(train, RunToCommit(path, secret, discrete=discrete)),
    )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be made: {error.strerror}. Choose another folder"
        ) from error
    CommittedSecret.write(path, rows, secret, run)
    return CommittedSecret(path).commitment


def _run_of(train: Callable[[Checkpoint], Result], draft: RunToCommit) -> Mapping[str, str]:
    """All that the sums of a run follow from.

    Raises:
        BadInput: `train` did not use the checkpoint.
    """
    try:
        train(draft)
    except Determined as determined:
        return determined.run
    raise BadInput(
        "train did not use the checkpoint that it was given: pass it on, checkpoint=checkpoint"
    )


@final
@dataclass(frozen=True)
class RowProof:
    """What shows that a row was committed to, to one who has the row; of other rows it tells
    nothing.

    Attributes:
        salt: of the row.
        position: of the row among all.
        beside: the digests that its own was hashed with, from the leaf up.
    """

    salt: str
    position: int
    beside: tuple[str, ...]


def proof_of_row(data: Dataset, folder: str | Path, index: int) -> RowProof:
    """The proof that row `index` of `data` is among those that were committed to in `folder`.

    Raises:
        BadInput: the rows are not those.
    """
    committed = CommittedSecret(Path(folder))
    tree = Tree.of(data, committed.secret)
    if tree.root != committed.rows:
        raise BadInput(
            "these are not the rows that were committed to: give the data of the run, unchanged"
        )
    if not 0 <= index < len(data.x):
        raise BadInput(f"index is {index}: expected one of the {len(data.x)} rows, counted from 0")
    return RowProof(
        _salt(committed.secret, index).hex(),
        index,
        tuple(sibling.hex() for sibling in tree.beside(index)),
    )


def is_committed(proof: RowProof, row: Sequence[Any], rows: str) -> bool:
    """Whether `proof` shows that a row is among those of a commitment.

    Args:
        proof: of `proof_of_row`.
        row: its inputs and its target (and the person's id, where the data have such), as arrays of
            the data's types.
        rows: what the commitment states of the rows.
    """
    at, position = (
        _leaf(bytes.fromhex(proof.salt), [np.asarray(part) for part in row]),
        proof.position,
    )
    for sibling in map(bytes.fromhex, proof.beside):
        at = _inner(sibling, at) if position % 2 else _inner(at, sibling)
        position //= 2
    return at.hex() == rows


@final
class Tree:
    """Digests of rows, and of pairs of digests up to one. The leaves are filled up to a power of
    two.

    Args:
        leaves: digests of the rows.
        secret: what the leaves that stand for no row follow from.
    """

    def __init__(self, leaves: list[bytes], secret: bytes) -> None:
        size = 1 << max(len(leaves) - 1, 0).bit_length()
        level = leaves + [_salt(secret, n) for n in range(len(leaves), size)]
        self._levels = [level]
        while len(level) > 1:
            level = [
                _inner(left, right) for left, right in zip(level[::2], level[1::2], strict=True)
            ]
            self._levels.append(level)

    @classmethod
    def of(cls, data: Dataset, secret: bytes) -> Tree:
        """The tree over the training rows of a data set."""
        return cls([_leaf(_salt(secret, n), row) for n, row in enumerate(_rows(data))], secret)

    @property
    def root(self) -> str:
        """What is committed to."""
        return self._levels[-1][0].hex()

    def beside(self, index: int) -> Iterator[bytes]:
        """The digests that lead from a leaf to the root."""
        for level in self._levels[:-1]:
            yield level[index ^ 1]
            index //= 2


def _rows(data: Dataset) -> Iterator[list[np.ndarray[Any, Any]]]:
    """The parts of each training row, as arrays."""
    present = [part for part in (data.x, data.y, data.groups) if part is not None]
    try:
        parts = [part if isinstance(part, np.ndarray) else np.asarray(part) for part in present]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"the rows cannot be committed to: {error}. Expected a Dataset of arrays or tensors"
        ) from error
    return (list(map(np.asarray, row)) for row in zip(*parts, strict=True))


def _salt(secret: bytes, index: int) -> bytes:
    return hashlib.blake2b(
        index.to_bytes(8, "big"), key=secret, digest_size=32, person=b"salt"
    ).digest()


def _leaf(salt: bytes, row: Sequence[np.ndarray[Any, Any]]) -> bytes:
    digest = hashlib.sha256(_LEAF + salt)
    for part in row:
        content = part.tobytes() if part.dtype.kind != "O" else repr(part.tolist()).encode()
        digest.update(f"{part.dtype.str} {part.shape} {len(content)} ".encode() + content)
    return digest.digest()


def _inner(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_INNER + left + right).digest()
