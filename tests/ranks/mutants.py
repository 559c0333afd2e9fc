"""Planted bugs in training by several processes: a named check must catch each."""

from __future__ import annotations

from privlearn.core import processes, streams
from privlearn.core.clipping import gradients, kernels
from privlearn.core.clipping import model_check as models_check
from privlearn.core.mechanisms import noise, release
from privlearn.data import torch_rows
from privlearn.publishing import publish
from privlearn.runs import code_digest, fact_texts, process_group, ranks, session
from privlearn.sklearn import spending
from privlearn.training import base_run, task
from privlearn.training import run as dpsgd
from tests.support.mutant import Mutant, suite_of

ALONE = "check_several_processes_train_what_one_does"
EMPTY = "check_processes_without_examples_take_every_step"
CHARGED = "check_the_first_ledger_is_charged_before_noise_is_drawn"
ALIKE = "check_processes_end_with_the_same_weights"
REFUSED = "check_a_refusal_is_one_for_all"
DIFFER = "check_processes_that_differ_are_named_and_refused"
APART = "check_processes_that_fall_apart_end"
RESUMED = "check_a_run_goes_on_with_any_number_of_processes"
OTHERS = "check_other_trainers_take_one_process"
PLACES = "check_parts_of_sums_get_the_noise_of_the_whole"
BEFORE = "check_sums_are_handed_out_with_their_noise"
SUMS = "check_sums_have_the_same_bits"
BITS = "check_the_number_of_processes_changes_no_bit"
PLACE = "check_what_the_first_process_did_is_known_in_all"
DEALT = "check_chunks_that_differ_end_all"
SHARDS = "check_shards_are_shared_out_equally"
LOSSES = "check_losses_that_differ_are_refused"
HOOKS = "check_hooks_that_are_put_in_on_the_way_are_refused"

MUTANTS = [
    Mutant(
        "hooks that are put in on the way pass with several processes",
        models_check.Structure.now,
        "if not alone:",
        "if False:",
        HOOKS,
    ),
    # Noise
    Mutant(
        "noise on each process, added up",
        ranks.Ranks.share,
        "*(total.view(-1).to(",
        "*((total + 0.1 * torch.randn_like(total)).view(-1).to(",
        ALONE,
    ),
    Mutant(
        "each process draws noise of its own",
        session.TrainingSession.noise,
        "self.world.noise(self.streams.noise)",
        "Streams.new(self.world.rank).noise",
        ALONE,
    ),
    Mutant(
        "noise divided by the number of processes",
        ranks.Ranks.share,
        "piece.to(kind) for",
        "piece.to(kind) * self.size for",
        ALONE,
    ),
    Mutant(
        "one place of the noise for two slices",
        noise.add_gaussian,
        "(size + start,",
        "(size,",
        PLACES,
    ),
    Mutant(
        "a slice of the grid has the noise of another",
        noise.add_on_grid,
        "noise[begin - first : end - first]",
        "noise[: end - begin]",
        PLACES,
    ),
    Mutant(
        "noise of others is not passed over",
        streams.NoiseStream.skip,
        "if number:",
        "if False:",
        PLACES,
    ),
    Mutant(
        "the noise that others make is passed over in part",
        streams.NoiseStream.skip,
        "-number * 8",
        "-number * 4",
        PLACES,
    ),
    Mutant(
        "sums of slices are not added up",
        ranks._tree,
        "while len(rows) > 1:",
        "while False:",
        ALONE,
    ),
    Mutant(
        "slices are handed out before their noise",
        release._add_noise,
        "if isinstance(stream, CorrelatedStream):",
        "part.share and part.share.complete(part.values)\n"
        "        if isinstance(stream, CorrelatedStream):",
        BEFORE,
    ),
    Mutant(
        "the mean of the processes' sums",
        ranks.Ranks.share,
        "piece.to(kind) for",
        "piece.to(kind) / self.size for",
        ALONE,
    ),
    Mutant(
        "a slice lies at the beginning of its whole",
        ranks.Slice.own,
        "begin for begin",
        "0 for begin",
        PLACES,
    ),
    # Batches and steps
    Mutant(
        "a process without examples skips the step",
        ranks.Ranks.deal,
        "require_alike = self._compare_batches(",
        "if len(chunks) <= self.rank: return\n    require_alike = self._compare_batches(",
        EMPTY,
    ),
    Mutant(
        "the local count as divisor",
        dpsgd.Run.step,
        "divisor)), task.divisor)",
        "divisor)), max(1, len(session.world.own(batch.sample.indices))))",
        ALONE,
    ),
    Mutant(
        "every process computes everything",
        ranks.Ranks.parts,
        "yield self.own(examples)",
        "yield examples",
        ALONE,
    ),
    Mutant(
        "every process computes every chunk",
        ranks.Ranks.deal,
        "chunks = halves(chunks)[rank // size]",
        "pass",
        ALONE,
    ),
    Mutant(
        "a sum of chunks is added to the next one",
        processes.in_tree,
        "\n        other.zero_()",
        "",
        SUMS,
    ),
    Mutant(
        "sums on a grid depend on the number of processes",
        session.Session.__init__,
        "world.exact() if",
        "world if",
        BITS,
    ),
    Mutant(
        "a chunk is left out",
        processes.halves,
        "items[middle:]",
        "items[middle + 1 :]",
        SUMS,
    ),
    Mutant(
        "a shard lies in two processes",
        ranks.Ranks._own_shards,
        "(self.rank + 1) * each",
        "(self.rank + 2) * each",
        SHARDS,
    ),
    Mutant(
        "an example is computed in two processes",
        ranks.Ranks.own,
        "np.array_split(examples, self.size)[self.rank]",
        "examples[self.rank * (len(examples) // self.size) :]",
        SHARDS,
    ),
    Mutant(
        "any number of processes shares the shards",
        ranks._require_size,
        "size & (size - 1)",
        "False",
        SHARDS,
    ),
    Mutant(
        "each process draws a sample of its own",
        ranks.Ranks.align,
        "if self.rank:",
        "if False:",
        CHARGED,
    ),
    Mutant(
        "samples are not compared", ranks.Ranks.share, "if on_processor(rows):", "if False:", APART
    ),
    Mutant(
        "chunks are not compared",
        ranks.Ranks.deal,
        "_compare_batches(said,",
        "_compare_batches(b'',",
        DEALT,
    ),
    Mutant(
        "examples of a chunk are added to those of the chunk before",
        processes.in_tree,
        "alone and len(second) == 1",
        "len(second) == 1",
        SUMS,
    ),
    Mutant(
        "a plain process computes with products that depend on the batches before",
        gradients.ClippedGradients.__init__,
        "fitted=world.size == 1 and not world.sharded",
        "fitted=world.size == 1",
        SUMS,
    ),
    Mutant(
        "sums are added up in another order",
        ranks._tree,
        "zip(rows[::2], rows[1::2], strict=True)",
        "zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)",
        SUMS,
    ),
    Mutant(
        "sums are sent in single precision",
        ranks.Ranks.share,
        "torch.float64 if double",
        "torch.float32 if double",
        SUMS,
    ),
    Mutant(
        "fast products, which depend on the batches before",
        kernels.kernels,
        " if fitted else 0",
        "",
        SUMS,
    ),
    Mutant(
        "batches are compared by a collective of their own",
        ranks.Ranks._compare_batches,
        "if not on_processor(totals[0]):",
        "if True:",
        "check_a_step_has_few_collectives",
    ),
    # Ledgers
    Mutant(
        "the first process's ledger is charged last",
        ranks.Ranks.in_turn,
        "self.once(lambda: values.append(action()), what)",
        "values.extend([action()] * bool(self.rank)); "
        "self.once(lambda: values.append(action()), what)",
        REFUSED,
    ),
    Mutant(
        "others do not hear of a refusal in the first process",
        ranks.Ranks._from_first,
        "bytes([outcome != (None, None)]",
        "bytes([False]",
        REFUSED,
    ),
    Mutant(
        "processes at different places go on together",
        ranks.Ranks._from_first,
        "first[:-1].tolist() != message[:-1].tolist()",
        "False",
        PLACE,
    ),
    Mutant(
        "charges are not agreed on",
        ranks.Ranks.agreed,
        "AgreedAccount(account, self)",
        "account",
        REFUSED,
    ),
    Mutant(
        "each process charges the shared ledger",
        session.Session.__init__,
        "if world.rank:",
        "if False:",
        CHARGED,
    ),
    Mutant(
        "room in the ledger is each process's own affair",
        session.Session.__init__,
        'world.once(self._require_room, "room in the ledger")',
        "world.rank or self._require_room()",
        REFUSED,
    ),
    # Agreement
    Mutant(
        "facts are not compared",
        session.TrainingSession._begin,
        "self.world.require_same(self.facts)",
        "pass",
        DIFFER,
    ),
    Mutant(
        "facts are not there to compare",
        task.Task.facts,
        "if session.file or session.world.size > 1:",
        "if session.file:",
        DIFFER,
    ),
    Mutant(
        "the code is not compared",
        ranks.Ranks.require_same,
        '"code of privlearn": _code(), ',
        "",
        DIFFER,
    ),
    Mutant(
        "losses are not compared",
        task.Task._prepare,
        "session.world.require_alike(",
        "str(",
        LOSSES,
    ),
    Mutant(
        "numbers that a loss captured are not compared",
        code_digest._common_parts_of,
        'name.startswith("global ")',
        'name.startswith(("global ", "captured "))',
        LOSSES,
    ),
    Mutant(
        "what belongs to a process is compared",
        code_digest._common_parts_of,
        'yield "function", value.__func__',
        "yield from ((str(vars(value.__self__)), value.__func__),)",
        LOSSES,
    ),
    Mutant(
        "a message tells of rows",
        fact_texts.tells_no_data,
        "is None",
        "is not False",
        DIFFER,
    ),
    Mutant("shapes are not compared", ranks.Ranks.copy, "self.require_alike(", "str(", DIFFER),
    Mutant(
        "initial weights are each process's own",
        task.Task.__init__,
        "session.world.copy(self.network.state_dict())",
        "pass",
        CHARGED,
    ),
    Mutant(
        "parameters are not compared",
        session.TrainingSession.compare,
        "self.world.size > 1 and",
        "False and",
        APART,
    ),
    Mutant(
        "parameters are not compared at the end",
        session.TrainingSession.stop,
        "now=True",
        "now=False",
        ALIKE,
    ),
    Mutant(
        "who leaves early is not missed",
        session.TrainingSession.stop,
        "self.world.require_same_steps(self.steps_done, compared=compared)",
        "pass",
        APART,
    ),
    Mutant(
        "who fails is waited for",
        session.TrainingSession.leave,
        "self.world.leave(error)",
        "pass",
        APART,
    ),
    Mutant(
        "a fit of an estimator in each process",
        spending.spend,
        'require_one_process("a fit of an estimator")',
        "pass",
        OTHERS,
    ),
    Mutant(
        "an engine in each process",
        ranks.launched,
        "            require_one_process()\n            return World()",
        "            return World()",
        OTHERS,
    ),
    Mutant(
        "who fails in another loop is waited for",
        base_run.BaseRun.close,
        "self.session.leave(error)",
        "pass",
        "check_processes_of_another_loop_are_not_waited_for",
    ),
    Mutant(
        "a loader that others share is trained on whole",
        torch_rows._require_plain,
        "sampler.num_replicas == (",
        "sampler.num_replicas or (",
        "check_a_loader_shared_out_among_others_is_refused",
    ),
    # What is kept and published
    Mutant(
        "each process writes the checkpoint",
        session.TrainingSession.keeps,
        "self.world.rank == 0",
        "True",
        RESUMED,
    ),
    Mutant(
        "each process publishes",
        publish._once,
        'result.world.once(write, "the publication")',
        "write()",
        "check_one_process_publishes",
    ),
    Mutant(
        "sums are not put together",
        ranks.Slice.complete,
        "value.copy_(piece.view(value.shape))",
        "pass",
        ALONE,
    ),
    Mutant(
        "something holds on to the group",
        process_group.leave,
        "_forget()",
        "pass",
        "check_threads_end_with_the_group",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[RuntimeError]
)
