"""Planted bugs in training of models under FSDP2: a named check must catch each."""

from __future__ import annotations

from privlearn.core import streams
from privlearn.core.clipping.sharded import groups
from privlearn.core.clipping.sharded.gradients_in_rounds import ShardedGradients
from privlearn.core.mechanisms import noise, release
from privlearn.publishing import publish
from privlearn.runs import ranks, session, shards
from tests.support.mutant import Mutant, suite_of

STEP, KEPT = (
    "check_a_step_on_shards_is_that_of_the_whole_model",
    "check_each_process_keeps_its_share_alone",
)
RESUMED, REFUSED = (
    "check_a_sharded_run_goes_on_with_more_processes",
    "check_what_can_not_be_sharded_is_refused",
)
KILLED = "check_a_killed_process_of_a_sharded_model_leaves_what_goes_on"

MUTANTS = [
    # Noise
    Mutant(
        "all shards get the noise of the first one",
        groups.Piece.place,
        "self.rank * self.width",
        "0 * self.width",
        STEP,
    ),
    Mutant(
        "shards of one parameter after another share noise",
        groups.Shards.own,
        "list(self.places[: len(values)])",
        "[(start, size // 2) for start, size in self.places[: len(values)]]",
        STEP,
    ),
    Mutant(
        "noise knows nothing of shards",
        release._add_noise,
        "part.sensitivity, stream, places)",
        "part.sensitivity, stream)",
        STEP,
    ),
    Mutant(
        "every process makes the noise of its shard from the stream's beginning",
        noise.add_gaussian,
        "stream.skip(passed)",
        "pass",
        "check_parts_of_sums_get_the_noise_of_the_whole",
    ),
    Mutant(
        "a resumed run has the noise that it had",
        streams.Streams.state,
        '"position": self.noise.position',
        '"position": 0',
        RESUMED,
    ),
    # Sums
    Mutant(
        "the norm of a shard for that of the whole",
        ShardedGradients._weigh,
        "self._squares(gradients, losses)",
        "self._squares(gradients, losses) / self._world.size",
        STEP,
    ),
    Mutant(
        "sums of shards are not added up",
        ranks.Ranks.scattered,
        "list(self._exchanged(rows))",
        "list(self._exchanged(rows))[self.rank :][:1]",
        STEP,
    ),
    Mutant(
        "the mean of the processes, as FSDP2 takes it",
        ranks.Ranks.scattered,
        "kind)",
        "kind) / self.size",
        STEP,
    ),
    Mutant("a coarse grid for sums", groups.Groups.scattered, "+ _STEP)", "+ _STEP / 6)", STEP),
    Mutant(
        "rows that stand in are counted",
        ShardedGradients._weigh,
        "part.counts & finite",
        "finite",
        STEP,
    ),
    Mutant(
        "rows beside one that fails are lost",
        ShardedGradients._split,
        "len(part.rows) > 1",
        "False",
        STEP,
    ),
    Mutant(
        "one process ends the rounds of all",
        ShardedGradients._add_up,
        "self._world.any(bool(waiting))",
        "self._world.total(torch.tensor(float(bool(waiting)))) > 1",
        STEP,
    ),
    # What is kept, and refused
    Mutant(
        "each process keeps all sums",
        ShardedGradients.buffers,
        "torch.zeros_like(shard, requires_grad=False)",
        "__import__('torch').distributed.tensor.DTensor.from_local(torch.zeros(shard.shape), "
        "shard.device_mesh, shard.placements)",
        KEPT,
    ),
    Mutant(
        "weights of a mixed-precision policy",
        groups.require_usable,
        "any(dtype is not None for dtype in",
        "any(False for dtype in",
        REFUSED,
    ),
    Mutant(
        "a resumed run begins with other weights",
        session.TrainingSession._restore,
        "**load_shards(",
        "**(lambda *own: {n: t * 0 for n, t in load_shards(*own).items()})(",
        RESUMED,
    ),
    Mutant(
        "each process publishes its shards",
        publish._once,
        'result.world.once(write, "the publication")',
        "write()",
        "check_a_sharded_model_is_published_whole",
    ),
    Mutant(
        "sums are not compared with autograd's",
        ShardedGradients._agrees,
        "same &= close(computed /",
        "close(computed /",
        "check_wrong_sums_of_shards_are_refused",
    ),
    # Killed
    Mutant(
        "shards are written over older ones",
        shards.save_shards,
        "secrets.token_hex(4)",
        "'0'",
        KILLED,
    ),
    Mutant(
        "shards that the checkpoint names are deleted",
        session.TrainingSession._save,
        "self.file.write(Saved(",
        "delete_shards(self.file.path, keep=shards['folder']); self.file.write(Saved(",
        KILLED,
    ),
    Mutant(
        "who waits for shards hears nothing of a kill",
        shards._heard,
        "with answered():",
        "if True:",
        KILLED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError]
)
