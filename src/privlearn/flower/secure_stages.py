"""A node's half of a secure sum: what it sends at each of the four stages, and what it refuses.

The protocol is that of Bonawitz et al., "Practical secure aggregation for privacy-preserving
machine learning" (CCS 2017), against a server that follows it:

1. `keys`: each node sends two public keys, one for masks and one for messages to other nodes.
2. `shares`: each node gets the keys of its group. It draws the seed of a mask of its own, and
   sends each of its group a share of the seed and a share of its private key for masks, encrypted.
3. `masked`: each node sends its integers, plus its mask, plus or minus a mask for each other node
   of its group that sent shares.
4. `unmask`: each node reveals for each of its group one of its two shares: the seed's where the
   masked integers arrived, the private key's where they did not.

A server that could have both shares of one node could take all masks off its integers. What a node
refuses makes that impossible as long as keys are the nodes'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from privlearn.flower.secure_keys import (
    KEY_BYTES,
    SEALING_BYTES,
    SHARE_BYTES,
    agree_on_key,
    derive_key,
    draw_secret,
    expand_mask,
    name_party,
    public_key,
    seal,
    split_secret,
    unseal,
)
from privlearn.flower.secure_terms import Terms

#: The stages in order, which are the ends of the messages' names.
KEYS, SHARES, MASKED, UNMASK = STAGES = ("keys", "shares", "masked", "unmask")
#: The record of a message that belongs to the protocol.
RECORD = "secure_sum"
#: Bytes of the name of a round, which the server draws.
NAME_BYTES = 16
#: Bytes of one node's message to another.
SEALED_BYTES = 2 * SHARE_BYTES + SEALING_BYTES
#: In place of a share that never came. No share has this first byte.
NO_SHARE = bytes([255]) * SHARE_BYTES
_PAIR_MASK, _SEED_MASK, _SEED_DIGEST, _SHARES = b"pair", b"mask", b"digest", b"shares"
_CIRCLE = b"circle"

Bytes = NDArray[np.uint8]
Nodes = NDArray[np.uint64]
Masked = NDArray[np.uint64]
#: An array's type and shape; None for any number of rows.
Shape = tuple[type[np.generic], tuple[int | None, ...]]


class Refused(Exception):
    """A node does not answer a request. The reason is for its own log."""


@dataclass(frozen=True, repr=False)
class Round:
    """What a node keeps between two stages.

    Attributes:
        name: the round's.
        stage: the last stage that was answered; empty for a round that has ended.
        nodes: how many nodes the server asked.
        mask_secret: the private key for masks.
        message_secret: the private key for messages.
        seed: of the node's mask.
        group: the nodes of its group, itself included, in order.
        keys: their public keys for masks and for messages, shape (group, 64).
        shares: the shares it holds, shape (group, 66): of private keys, and of seeds.
    """

    name: bytes
    stage: str = ""
    nodes: int = 0
    mask_secret: bytes = b""
    message_secret: bytes = b""
    seed: bytes = b""
    group: bytes = b""
    keys: bytes = b""
    shares: bytes = b""

    def record(self) -> ConfigRecord:
        """As a record of the node's state, without what is empty."""
        return ConfigRecord({name: value for name, value in vars(self).items() if value})

    @classmethod
    def of_record(cls, record: ConfigRecord) -> Round:
        """What `record` made."""
        return cls(**cast(dict[str, Any], dict(record)))


def pack(*arrays: NDArray[Any]) -> RecordDict:
    """A message of the protocol."""
    return RecordDict({RECORD: ArrayRecord(list(arrays))})


def unpack(content: RecordDict, *shapes: Shape) -> list[NDArray[Any]]:
    """The arrays of a message.

    Args:
        content: the message.
        shapes: of each array.

    Raises:
        Exception: it holds something else. Nodes and server may send anything.
    """
    arrays = content.array_records[RECORD].to_numpy_ndarrays()
    for array, (dtype, shape) in zip(arrays, shapes, strict=True):
        sizes = zip(array.shape, shape, strict=True)
        if array.dtype != dtype or any(size not in (None, have) for have, size in sizes):
            raise Refused(f"an array is {array.dtype} {array.shape}, not {dtype} {shape}")
    return arrays


def name_round(content: RecordDict) -> bytes:
    """The round that a request is for: the first array of each."""
    name = content.array_records[RECORD].to_numpy_ndarrays()[0]
    if name.dtype != np.uint8 or name.shape != (NAME_BYTES,):
        raise Refused("a request names no round")
    return name.tobytes()


def name_circle(round_: Round) -> bytes:
    """What tells the adding up of a round from all others, at a node: it follows from the node's
    seed, too, which is new in each round, since a server may give one name to two rounds.
    """
    return derive_key(round_.seed, _CIRCLE, round_.name)


def send_keys(content: RecordDict, node: int, terms: Terms) -> tuple[RecordDict, Round]:
    """The first stage: two public keys, and what to remember."""
    name, nodes = unpack(content, (np.uint8, (NAME_BYTES,)), (np.int64, ()))
    if node < 1:
        raise Refused(f"this node's number is {node}, and shares are at numbers from 1")
    terms.least(int(nodes))
    round_ = Round(name.tobytes(), KEYS, int(nodes), draw_secret(), draw_secret())
    return pack(read_bytes(_public_keys(round_), 2 * KEY_BYTES)[0]), round_


def send_shares(
    content: RecordDict, node: int, terms: Terms, round_: Round
) -> tuple[RecordDict, Round]:
    """The second stage: a share of the mask key and of the seed for each node of the group."""
    _, group, keys = unpack(
        content,
        (np.uint8, (NAME_BYTES,)),
        (np.uint64, (None,)),
        (np.uint8, (None, 2 * KEY_BYTES)),
    )
    least = terms.least(round_.nodes)
    _require_nodes(group, node, least)
    if len(group) > terms.group_size(round_.nodes) or len(keys) != len(group):
        raise Refused("the group has more nodes than it may, or not a pair of keys for each")
    if len({each.tobytes() for each in keys.reshape(-1, KEY_BYTES)}) != 2 * len(group):
        raise Refused("two public keys are the same")
    if keys[group == node].tobytes() != _public_keys(round_):
        raise Refused("the keys in this node's name are not its keys")
    holders = [int(holder) for holder in group]
    seed = draw_secret()
    parts = [
        key_share + seed_share
        for key_share, seed_share in zip(
            split_secret(round_.mask_secret, least, holders),
            split_secret(seed, least, holders),
            strict=True,
        )
    ]
    sealed = b"".join(
        seal(_message_key(round_, node, holder, public, sends=True), part)
        for holder, public, part in zip(holders, keys, parts, strict=True)
        if holder != node
    )
    shares = b"".join(
        part if holder == node else NO_SHARE + NO_SHARE
        for holder, part in zip(holders, parts, strict=True)
    )
    reply = pack(
        read_bytes(sealed, SEALED_BYTES), read_bytes(digest_seed(seed, round_.name, node))[0]
    )
    return reply, replace(
        round_,
        stage=SHARES,
        seed=seed,
        group=group.tobytes(),
        keys=keys.tobytes(),
        shares=shares,
    )


def send_masked(
    content: RecordDict,
    node: int,
    terms: Terms,
    round_: Round,
    compute: Callable[[], NDArray[np.int64] | None],
) -> tuple[RecordDict, Round]:
    """The third stage: the node's integers under masks."""
    _, sharing, sealed, size, bound = unpack(
        content,
        (np.uint8, (NAME_BYTES,)),
        (np.uint64, (None,)),
        (np.uint8, (None, SEALED_BYTES)),
        (np.int64, ()),
        (np.int64, ()),
    )
    _require_nodes(sharing, node, terms.least(round_.nodes))
    group, keys = _group_of(round_)
    if not np.isin(sharing, group).all() or len(sealed) != len(sharing) - 1:
        raise Refused("a node sent shares that was not in the group, or there is no message of one")
    if not 0 <= int(bound) * round_.nodes < 2**63:
        raise Refused("the sum may not fit into 64 bits")
    integers = compute()
    if integers is None:
        raise Refused("this site has no integers")
    if integers.dtype != np.int64 or integers.shape != (int(size),):
        raise Refused("this site's integers have another type or shape than was asked for")
    # not by abs(), which is negative for the smallest integer
    if not bool(((integers >= -bound) & (integers <= bound)).all()):
        raise Refused("an integer of this site is above the bound")
    values = integers.astype(np.uint64)
    values += expand_mask(seed_mask_key(round_.seed, round_.name, node), len(values))
    shares = read_bytes(round_.shares, 2 * SHARE_BYTES).copy()
    for other, message in zip(sharing[sharing != node], sealed, strict=True):
        at = int(np.searchsorted(group, other))
        key = pair_mask_key(
            round_.mask_secret, node, int(other), keys[at, :KEY_BYTES].tobytes(), round_.name
        )
        add_pair_mask(values, key, node, int(other))
        shares[at] = _open_shares(round_, node, int(other), keys[at], message)
    stays = np.isin(group, sharing)
    after = Round(
        round_.name,
        MASKED,
        round_.nodes,
        group=group[stays].tobytes(),
        shares=shares[stays].tobytes(),
    )
    return pack(values), after


def send_unmasking(content: RecordDict, node: int, terms: Terms, round_: Round) -> RecordDict:
    """The last stage: for each node one share, of its seed or of its private key, never both."""
    _, staying, dropped = unpack(
        content, (np.uint8, (NAME_BYTES,)), (np.uint64, (None,)), (np.uint64, (None,))
    )
    _require_nodes(staying, node, terms.least(round_.nodes))
    group = np.frombuffer(round_.group, np.uint64)
    if not np.array_equal(np.sort(np.concatenate([staying, dropped])), group):
        raise Refused("each node of the group has to have stayed or dropped out, and not both")
    shares = read_bytes(round_.shares, 2 * SHARE_BYTES).reshape(-1, 2, SHARE_BYTES)
    kinds = np.isin(group, staying).astype(np.int64)
    return pack(shares[np.arange(len(group)), kinds])


# -- keys and masks, which the server derives, too, once it has their secrets


def pair_mask_key(secret: bytes, node: int, other: int, other_public: bytes, name: bytes) -> bytes:
    """The key of the mask that two nodes have in common in a round, from one's private key."""
    parties = sorted([name_party(node, public_key(secret)), name_party(other, other_public)])
    return agree_on_key(secret, other_public, _PAIR_MASK, name, *parties)


def add_pair_mask(values: Masked, key: bytes, node: int, other: int, sign: int = 1) -> None:
    """Add a pair's mask at one of both, which subtracts it if its number is the higher one."""
    mask = expand_mask(key, len(values))
    if (node < other) == (sign == 1):
        values += mask
    else:
        values -= mask


def seed_mask_key(seed: bytes, name: bytes, node: int) -> bytes:
    """The key of a node's mask."""
    return derive_key(seed, _SEED_MASK, name, name_party(node, b""))


def digest_seed(seed: bytes, name: bytes, node: int) -> bytes:
    """By which the server sees whether it put a seed together rightly."""
    return derive_key(seed, _SEED_DIGEST, name, name_party(node, b""))


def read_bytes(raw: bytes, width: int | None = None) -> Bytes:
    """Rows of bytes, shape (rows, width)."""
    rows: Bytes = np.frombuffer(raw, np.uint8).reshape(-1, width or len(raw))
    return rows


def _public_keys(round_: Round) -> bytes:
    return public_key(round_.mask_secret) + public_key(round_.message_secret)


def _group_of(round_: Round) -> tuple[Nodes, Bytes]:
    return np.frombuffer(round_.group, np.uint64), read_bytes(round_.keys, 2 * KEY_BYTES)


def _require_nodes(nodes: Nodes, node: int, least: int) -> None:
    """That nodes are in order, each once, with this one, and enough."""
    if len(nodes) < least:
        raise Refused("fewer nodes than the threshold")
    if not bool((nodes[1:] > nodes[:-1]).all()) or nodes[0] < 1:
        raise Refused("nodes are not in order, or one is there twice")
    if node not in nodes:
        raise Refused("this node is not among the nodes")


def _message_key(round_: Round, node: int, other: int, public: Bytes, *, sends: bool) -> bytes:
    """The key of messages from one node to another, which is not that of messages back."""
    other_public = public[KEY_BYTES:].tobytes()
    parties = [
        name_party(node, public_key(round_.message_secret)),
        name_party(other, other_public),
    ]
    in_order = parties if sends else parties[::-1]
    return agree_on_key(round_.message_secret, other_public, _SHARES, round_.name, *in_order)


def _open_shares(round_: Round, node: int, other: int, public: Bytes, message: Bytes) -> Bytes:
    """What another node sent; no shares where that can't be read, which reveals less."""
    try:
        key = _message_key(round_, node, other, public, sends=False)
        shares: Bytes = np.frombuffer(unseal(key, message.tobytes()), np.uint8)
    except Exception:
        shares = np.frombuffer(NO_SHARE + NO_SHARE, np.uint8)
    return shares
