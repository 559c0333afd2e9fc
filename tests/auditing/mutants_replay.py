"""Planted bugs in transcripts and their replay: forged runs would pass, keys be chosen or used
twice.
"""

from __future__ import annotations

from privlearn.auditing import commitment, replaying
from privlearn.cli.commands import replay as command
from privlearn.core import streams
from privlearn.publishing import remaking
from privlearn.runs import session, transcript
from tests.support.mutant import Mutant, suite_of

KEYS, ONCE = "check_streams_follow_from_the_commitment", "check_keys_of_a_run_are_used_once"
PASSED = "check_noise_that_was_passed_over_is_found"
FOLDER, SECRET = (
    "check_what_lies_in_the_folder_is_what_was_stated",
    "check_a_transcript_tells_nothing_without_its_secret",
)
RUN, A_SECRET = "check_a_commitment_is_to_one_run", "check_a_secret_is_one"
ALONE = "check_two_runs_of_one_challenge_share_no_noise"
USED = "check_a_recorded_run_that_begins_anew_repeats_no_noise"
CODE = "check_a_folder_does_not_choose_the_code_that_runs"
DISK = "check_a_state_that_is_not_on_disk_is_not_stated"
TOLERANCE = "check_a_tolerance_lets_rounding_pass_and_no_more"
ROW, ROWS = "check_a_row_can_be_shown_to_be_committed_to", "check_other_rows_are_found"
CHANCE, HONEST = (
    "check_forged_parts_pass_as_often_as_said",
    "check_an_honest_run_agrees_in_all_parts",
)

MUTANTS = [
    Mutant(
        "keys do not depend on the challenge",
        transcript.CommittedSecret.streams,
        "+ challenge",
        "",
        KEYS,
    ),
    Mutant(
        "keys do not depend on the rows",
        transcript.CommittedSecret.streams,
        "bytes.fromhex(self.commitment) +",
        "",
        KEYS,
    ),
    Mutant(
        "keys do not depend on the secret",
        transcript.CommittedSecret.streams,
        "key=self.secret",
        "key=bytes(32)",
        KEYS,
    ),
    Mutant(
        "keys do not depend on the run",
        transcript.CommittedSecret.bound,
        "streams.bind(self.run)",
        "streams.bind({})",
        KEYS,
    ),
    Mutant(
        "noise is drawn by keys that depend on no run",
        transcript.first_streams,
        "Streams.of_secret(later, ",
        "(lambda _, key, **options: Streams.of_key(key, **options))(later, ",
        KEYS,
    ),
    Mutant(
        "a commitment is good for any run",
        transcript.Transcript.bind,
        "require_committed(self._secret.run, determined)",
        "determined = self._secret.run",
        RUN,
    ),
    Mutant(
        "one challenge serves any number of runs",
        transcript.Transcript.bind,
        "require_committed(self._secret.run, determined)",
        "determined = self._secret.run",
        ALONE,
    ),
    Mutant(
        "what a recorded run's key was used for is forgotten",
        session.TrainingSession._begin,
        "if bound:\n    self.repeats.recall()",
        "if False:\n                    self.repeats.recall()",
        USED,
    ),
    Mutant(
        "options are left out of a run's key",
        session.TrainingSession._collect_inputs,
        "{**self.facts, **self.code, ",
        "{**self.code, ",
        RUN,
    ),
    Mutant(
        "code is left out of a run's key",
        session.TrainingSession._collect_inputs,
        "**self.code, ",
        "",
        RUN,
    ),
    Mutant(
        "the first weights are left out of a run's key",
        session.TrainingSession._collect_inputs,
        '"initial state": digest.hexdigest()',
        '"initial state": ""',
        RUN,
    ),
    Mutant(
        "a commitment is to facts alone",
        session.TrainingSession._collect_inputs,
        '**self.code, **said, "initial state": digest.hexdigest()',
        '"initial state": ""',
        RUN,
    ),
    Mutant(
        "a secret of any length",
        transcript.CommittedSecret.__init__,
        "_LEAST <= len(secret)",
        "0 <= len(secret)",
        A_SECRET,
    ),
    Mutant(
        "any run will do",
        transcript.CommittedSecret.__init__,
        " or _digest_of_run(secret, self.run) != run",
        "",
        A_SECRET,
    ),
    Mutant(
        "the run of a commitment is readable",
        transcript._digest_of_run,
        "hmac.new(secret,",
        "hmac.new(b'',",
        SECRET,
    ),
    Mutant(
        "all four streams have one key",
        streams.Streams.of_key,
        "key[start : start + 16]",
        "key[:16]",
        KEYS,
    ),
    Mutant(
        "a run draws from streams of its own",
        transcript.Transcript.write,
        '["key"] != self._key',
        '["key"] == 0',
        KEYS,
    ),
    Mutant(
        "noise and batches have one key",
        streams.Streams.bind,
        "key[start : start + 16]",
        "key[:16]",
        KEYS,
    ),
    Mutant(
        "batches do not depend on the run",
        streams.Streams.bind,
        "((self.sampling, 16), (self.views, 32))",
        "((self.views, 32),)",
        KEYS,
    ),
    Mutant(
        "states without their shards",
        transcript.Transcript.write,
        '"shards" in saved.plain',
        "False",
        KEYS,
    ),
    Mutant(
        "a commitment is good for a second run",
        transcript.Transcript.delete,
        "self._end_marker.touch()",
        "pass",
        ONCE,
    ),
    Mutant(
        "a commitment is overwritten",
        commitment.commit,
        "(path / COMMITMENT).exists()",
        "False",
        ONCE,
    ),
    Mutant(
        "a resumed run leaves out lines",
        transcript.Transcript.read,
        "recording.complete",
        "recording.complete[:-1]",
        ONCE,
    ),
    Mutant(
        "noise is drawn before the first state is on disk",
        transcript.Transcript.write,
        "self._finish()\n        self._lines",
        "pass\n    self._lines",
        DISK,
    ),
    Mutant(
        "a state that could not be written is passed over",
        transcript.Transcript._finish,
        "if self._failed:",
        "if False:",
        DISK,
    ),
    Mutant(
        "a state is stated before it is on disk",
        transcript.Transcript._put,
        "except (BadInput, OSError) as error:",
        "except (BadInput, OSError) as error:\n        self.path.open('a').write(lines)",
        DISK,
    ),
    Mutant(
        "a folder chooses the code that runs",
        command._require_own_code,
        "if is_code and value != spec:",
        "if False:",
        CODE,
    ),
    Mutant(
        "options of a stranger are not looked at",
        command._training,
        "_require_known(options)",
        "pass",
        CODE,
    ),
    Mutant(
        "states are not compared",
        replaying._Part._compare_tensors,
        "not torch.equal(",
        "False and not torch.equal(",
        TOLERANCE,
    ),
    Mutant("streams are not compared", replaying._Part.write, '"streams", ', "", PASSED),
    Mutant(
        "batches are not compared",
        replaying._Part.record,
        'recomputed["sample"] != recorded["sample"]',
        "False",
        "check_a_batch_that_was_not_drawn_is_found",
    ),
    Mutant(
        "the tolerance is a share of one",
        replaying._close,
        "float(ours.abs().max())",
        "1e6",
        TOLERANCE,
    ),
    Mutant(
        "a state need not be the stated one",
        transcript.Recording.state,
        'self.secret.digest(b"state ", head_of(content)) != self.states[number]',
        "False",
        FOLDER,
    ),
    Mutant(
        "any certificate will do",
        replaying._Published.unlike,
        "if remaking.transcript_of(self.certificate) !=",
        "if 0 ==",
        FOLDER,
    ),
    Mutant(
        "a certificate of another plan",
        remaking.other_certificate,
        '!= digest(certificate["plan"])',
        "== 0",
        "check_a_certificate_of_another_plan_is_found",
    ),
    Mutant(
        "any weights will do",
        replaying._Published._other_weights,
        "or not all(",
        "or False and not all(",
        FOLDER,
    ),
    Mutant("steps may be missing", transcript.Recording.__init__, "or not numbered", "", FOLDER),
    Mutant(
        "any secret will do",
        transcript.CommittedSecret.__init__,
        (
            "hashlib.sha256(secret).hexdigest() != committed or _digest_of_run(secret, self.run) "
            "!= run"
        ),
        "False",
        FOLDER,
    ),
    Mutant(
        "rows are not compared with the commitment",
        replaying._other_rows,
        ".root != recording",
        ".root == recording",
        ROWS,
    ),
    Mutant(
        "digests without a key",
        transcript.CommittedSecret.digest,
        "self.secret, what",
        "what, what",
        SECRET,
    ),
    Mutant("rows without salt", commitment._leaf, "_LEAF + salt", "_LEAF", SECRET),
    Mutant(
        "states that everybody reads",
        transcript.Transcript._put,
        "content, mode=0o600",
        "content",
        SECRET,
    ),
    Mutant(
        "a row's place does not matter", commitment.is_committed, "if position % 2", "if False", ROW
    ),
    Mutant(
        "a target is not committed to",
        commitment._rows,
        "(data.x, data.y, data.groups)",
        "(data.x,)",
        ROW,
    ),
    Mutant(
        "the first parts are taken",
        replaying._choose,
        "rng.permutation(len(parts))",
        "range(len(parts))",
        CHANCE,
    ),
    Mutant(
        "a chance of passing that is too small",
        replaying.Replay.escape,
        "self.parts - self.chosen - n",
        "self.parts - 2 * self.chosen - n",
        CHANCE,
    ),
    Mutant(
        "a certificate without its transcript",
        session.TrainingSession.facts_of_leaving,
        "self.file.facts() if",
        "{} if",
        HONEST,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[KeyError]
)
