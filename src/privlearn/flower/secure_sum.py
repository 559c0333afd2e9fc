"""Secure sums: the server of a federation learns the sum of its nodes' integers and no more."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, final

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from privlearn._checks import with_plain_numbers
from privlearn.errors import BadInput, ProcessLost
from privlearn.flower import secure_stages as stages
from privlearn.flower.requests import Progress, collect_replies
from privlearn.flower.secure_keys import (
    KEY_BYTES,
    SHARE_BYTES,
    expand_mask,
    join_shares,
    public_key,
)
from privlearn.flower.secure_stages import (
    KEYS,
    MASKED,
    RECORD,
    SHARES,
    STAGES,
    UNMASK,
    Bytes,
    Masked,
    Refused,
    Round,
    pack,
    read_bytes,
    unpack,
)
from privlearn.flower.secure_terms import Terms, are_connected, leave_out_lonely
from privlearn.flower.summation import Circle, Compute, Summation, Total, require_room

_log = logging.getLogger(__name__)

Groups = dict[int, set[int]]

_LEAVES = "this site leaves a secure sum, and the server gets an empty reply: %s"


@with_plain_numbers
@final
class SecureSum(Summation):
    """Nodes send their integers under masks that cancel out in the sum over all who stay.

    Guarantee: a server that follows the protocol, together with fewer than the threshold of the
    nodes of any group, learns from a round nothing but the sum, modulo 2^64, of the integers of the
    other nodes that stayed, and who dropped out at which stage (Bonawitz et al., "Practical secure
    aggregation for privacy-preserving machine learning", CCS 2017, theorem 6.3, computationally).
    A server that makes up public keys of its own can be any number of nodes: keys are not signed.
    The sum itself is exact; noise is another's task.

    A round has four stages, each a request to each node. It fails as a whole if fewer than the
    threshold stay. The same integers may then be asked for again: keys and masks are new.

    Nodes and server have to be constructed with the same numbers. A node keeps to its own.

    Args:
        threshold: how many sites have to stay until the end: a fraction above 0.5 of those asked
            (float), or their number (int), which a server can't lower by asking fewer.
        neighbours: with how many others each node exchanges masks, an even number, so that work
            grows with it and not with the number of nodes (Bell et al., "Secure single-server
            aggregation with (poly)logarithmic overhead", CCS 2020). The threshold is then of a node
            and its neighbours. None: with all.

    Raises:
        BadInput: a number out of range.
    """

    server_sees = "the sum of all sites' answers, and which sites took part"

    def __init__(self, *, threshold: float | int = 2 / 3, neighbours: int | None = None) -> None:
        self._terms = Terms(threshold, neighbours)

    def least(self, nodes: int) -> int:
        """The threshold.

        Raises:
            BadInput: too few nodes, or too many for a threshold that is a number.
        """
        return self._terms.least(nodes)

    def serve(self, app: ClientApp, question: str, compute: Compute) -> None:
        """Answer the four stages of a round."""
        site = _Site(self._terms, question, compute)
        for stage in STAGES:
            app.query(f"{question}_{stage}")(site.answers(stage))

    def add_up(
        self,
        grid: Grid,
        nodes: Sequence[int],
        question: str,
        content: RecordDict,
        *,
        bound: int,
        size: int,
        timeout: float,
        progress: Progress | None = None,
    ) -> Total:
        """The sum of the integers of those nodes that stay until masks are on.

        Raises:
            BadInput: too few nodes, or a sum that may not fit into 64 bits; nothing was asked.
            ProcessLost: fewer nodes than the threshold stayed until the end. Nothing was added up.
        """
        least = self._terms.least(len(nodes))
        require_room(bound, len(nodes))
        if RECORD in content:
            raise BadInput(f"content has a record {RECORD!r}: expected another name for it")
        conversation = _Conversation(grid, question, timeout, progress)
        gathering = _Gathering(self._terms.draw_groups(nodes), least, conversation)
        gathering.collect_keys(len(nodes))
        gathering.collect_shares()
        gathering.collect_masked(content, size, bound)
        gathering.collect_secrets()
        values = gathering.unmask().view(np.int64)
        limit = bound * len(gathering.masked)
        if not bool(((values >= -limit) & (values <= limit)).all()):
            _fail("a site has sent what no integers within the bound can be")
        return Total(values, tuple(sorted(gathering.masked)))


def _fail(reason: str) -> NoReturn:
    raise ProcessLost(
        f"the secure sum failed: {reason}. Expected as many sites as its threshold to stay until "
        "the end; no answers were seen. Check that sites and server have the same summation with "
        "the same numbers, and ask again"
    )


class _Site:
    """Answers the stages at a node."""

    def __init__(self, terms: Terms, question: str, compute: Compute) -> None:
        self._terms, self._compute = terms, compute
        self._record = f"{RECORD}_{question}"

    def answers(self, stage: str) -> Callable[[Message, Context], Message]:
        """The function that answers a stage."""

        def answer(message: Message, context: Context) -> Message:
            try:
                content = self._answer(stage, message, context)
            except Exception as error:
                # what a refusal says is public; any other error may be a fault of the site's
                _log.warning(_LEAVES, error, exc_info=not isinstance(error, Refused))
                content = RecordDict()
            return Message(content, reply_to=message)

        return answer

    def _answer(self, stage: str, message: Message, context: Context) -> RecordDict:
        # the node's number from the node itself: the one in a message is the server's word
        request, node = message.content, context.node_id
        round_ = self._begin(stage, stages.name_round(request), context)
        if stage == KEYS:
            reply, after = stages.send_keys(request, node, self._terms)
        elif stage == SHARES:
            reply, after = stages.send_shares(request, node, self._terms, round_)
        elif stage == MASKED:
            circle = Circle(stages.name_circle(round_), self._terms.least(round_.nodes), node)
            asked = RecordDict({name: request[name] for name in request if name != RECORD})
            reply, after = stages.send_masked(
                request, node, self._terms, round_, lambda: self._compute(asked, context, circle)
            )
        else:
            return stages.send_unmasking(request, node, self._terms, round_)
        context.state[self._record] = after.record()
        return reply

    def _begin(self, stage: str, name: bytes, context: Context) -> Round:
        """What is remembered of a round, which is forgotten before anything is answered: each stage
        is answered once, in order, and a round that meets an error is over.
        """
        before = context.state.get(self._record)
        round_ = Round.of_record(before) if isinstance(before, ConfigRecord) else Round(b"")
        if stage == KEYS:
            if name == round_.name:
                raise Refused("this round has begun before")
        elif name != round_.name or round_.stage != STAGES[STAGES.index(stage) - 1]:
            raise Refused("this stage of the round is not next")
        context.state[self._record] = Round(name).record()
        return round_


class _Conversation:
    """The server's requests of one round."""

    def __init__(
        self, grid: Grid, question: str, timeout: float, progress: Progress | None
    ) -> None:
        self._grid, self._question = grid, question
        self._timeout, self._progress = timeout, progress
        self.name = secrets.token_bytes(stages.NAME_BYTES)

    def ask(self, stage: str, requests: Mapping[int, RecordDict]) -> dict[int, RecordDict]:
        """The replies that came in time, by node."""
        kind = f"query.{self._question}_{stage}"
        messages = [
            Message(request, dst_node_id=node, message_type=kind)
            for node, request in requests.items()
        ]
        replies = collect_replies(self._grid, messages, self._timeout, self._progress)
        return {
            node: reply.content
            for node, reply in zip(requests, replies, strict=True)
            if reply is not None and not reply.has_error()
        }

    def pack(self, *arrays: NDArray[Any]) -> RecordDict:
        """A request of this round."""
        return pack(read_bytes(self.name)[0], *arrays)


class _Gathering:
    """What the server has of one round."""

    def __init__(self, groups: Groups, least: int, conversation: _Conversation) -> None:
        self._groups, self._least, self._conversation = groups, least, conversation
        self._keys: dict[int, Bytes] = {}
        self._digests: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, Bytes]] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}
        #: The masked integers of the nodes that stayed.
        self.masked: dict[int, Masked] = {}

    def collect_keys(self, nodes: int) -> None:
        """The first stage."""
        request = self._conversation.pack(np.array(nodes, np.int64))
        replies = self._conversation.ask(KEYS, dict.fromkeys(self._groups, request))
        taken: set[bytes] = set()
        for node, content in replies.items():
            arrays = _read(content, (np.uint8, (2 * KEY_BYTES,)))
            if arrays is not None:
                keys = {arrays[0][:KEY_BYTES].tobytes(), arrays[0][KEY_BYTES:].tobytes()}
                # nodes refuse a group where a key is there twice
                if len(keys) == 2 and not keys & taken:
                    taken |= keys
                    self._keys[node] = arrays[0]
        self._leave_out_all_but(self._keys)

    def collect_shares(self) -> None:
        """The second stage."""
        requests = {
            node: self._conversation.pack(
                _as_nodes(group), np.stack([self._keys[other] for other in sorted(group)])
            )
            for node, group in self._groups.items()
        }
        for node, content in self._conversation.ask(SHARES, requests).items():
            others = sorted(self._groups[node] - {node})
            arrays = _read(
                content,
                (np.uint8, (len(others), stages.SEALED_BYTES)),
                (np.uint8, (KEY_BYTES,)),
            )
            if arrays is not None:
                self._sealed[node] = dict(zip(others, arrays[0], strict=True))
                self._digests[node] = arrays[1].tobytes()
        self._leave_out_all_but(self._sealed)

    def collect_masked(self, content: RecordDict, size: int, bound: int) -> None:
        """The third stage."""
        requests = {}
        for node, group in self._groups.items():
            sealed = [self._sealed[other][node] for other in sorted(group) if other != node]
            request = self._conversation.pack(
                _as_nodes(group),
                np.stack(sealed),
                np.array(size, np.int64),
                np.array(bound, np.int64),
            )
            requests[node] = RecordDict({**content, **request})
        for node, reply in self._conversation.ask(MASKED, requests).items():
            arrays = _read(reply, (np.uint64, (size,)))
            if arrays is not None:
                self.masked[node] = arrays[0]
        staying = leave_out_lonely(self._groups, self.masked, self._least)
        if len(staying) < max(self._least, len(self.masked)):
            _fail("too few sites stayed")
        if not are_connected(staying, staying):
            _fail("no masks tie together the sites that stayed")

    def collect_secrets(self) -> None:
        """The last stage."""
        staying = set(self.masked)
        requests = {
            node: self._conversation.pack(
                _as_nodes(self._groups[node] & staying), _as_nodes(self._groups[node] - staying)
            )
            for node in sorted(staying)
        }
        for holder, content in self._conversation.ask(UNMASK, requests).items():
            group = sorted(self._groups[holder])
            arrays = _read(content, (np.uint8, (len(group), SHARE_BYTES)))
            if arrays is not None:
                for node, share in zip(group, arrays[0], strict=True):
                    if share.tobytes() != stages.NO_SHARE:
                        self._revealed.setdefault(node, {})[holder] = share.tobytes()

    def unmask(self) -> Masked:
        """The sum of the integers, modulo 2^64."""
        total = np.zeros_like(next(iter(self.masked.values())))
        for values in self.masked.values():
            total += values
        for node in self._groups:
            if node in self.masked:
                seed = self._join(node, self._is_seed)
                key = stages.seed_mask_key(seed, self._conversation.name, node)
                total -= expand_mask(key, len(total))
            elif others := sorted(self._groups[node] & set(self.masked)):
                self._take_off_pair_masks(total, node, others)
        return total

    def _take_off_pair_masks(self, total: Masked, node: int, others: Sequence[int]) -> None:
        """The masks that others added for a node that dropped out."""
        secret = self._join(node, self._is_mask_key)
        for other in others:
            public = self._keys[other][:KEY_BYTES].tobytes()
            key = stages.pair_mask_key(secret, node, other, public, self._conversation.name)
            stages.add_pair_mask(total, key, other, node, sign=-1)

    def _is_seed(self, node: int, secret: bytes) -> bool:
        return stages.digest_seed(secret, self._conversation.name, node) == self._digests[node]

    def _is_mask_key(self, node: int, secret: bytes) -> bool:
        return public_key(secret) == self._keys[node][:KEY_BYTES].tobytes()

    def _join(self, node: int, is_right: Callable[[int, bytes], bool]) -> bytes:
        """The secret whose shares were revealed, although one of them may be wrong."""
        shares = self._revealed.get(node, {})
        for left_out in (None, *sorted(shares)):
            holders = [holder for holder in sorted(shares) if holder != left_out]
            if len(holders) >= self._least:
                try:
                    secret = join_shares({at: shares[at] for at in holders[: self._least]})
                except OverflowError:
                    continue
                if is_right(node, secret):
                    return secret
        _fail("too few sites stayed, or they revealed what fits nothing")

    def _leave_out_all_but(self, nodes: Collection[int]) -> None:
        self._groups = leave_out_lonely(self._groups, nodes, self._least)
        if len(self._groups) < self._least:
            _fail("too few sites stayed")


def _as_nodes(nodes: Collection[int]) -> stages.Nodes:
    return np.array(sorted(nodes), np.uint64)


def _read(content: RecordDict, *shapes: stages.Shape) -> list[NDArray[Any]] | None:
    """The arrays of a reply; None for anything else, whatever it is."""
    try:
        return unpack(content, *shapes)
    except Exception:
        return None
