"""Planted bugs in what goes to the Hugging Face Hub and comes from there, each of which a named
check must catch.
"""

from __future__ import annotations

import pytest

from privlearn.publishing import hub, libraries, publish
from tests.publishing import checks_hub
from tests.publishing.checks_envelopes import make_folder
from tests.support.mutant import Mutant, suite_of

UNVERIFIED = "check_a_folder_that_does_not_verify_is_not_pushed"
STRANGERS = "check_strangers_in_the_repository_are_problems"
ONE_COMMIT = "check_a_branch_that_moves_meanwhile_is_read_at_one_commit"
AT_ONCE = "check_a_model_is_published_and_pushed_at_once"
HEAD = "check_the_head_of_a_card_has_what_the_hub_reads"
MUTANTS = [
    Mutant(
        "exact figures of test rows are in the head",
        libraries.with_metadata,
        "metrics.plan is not None and figures",
        "figures",
        HEAD,
    ),
    Mutant(
        "a licence may be any text",
        libraries.require_licence,
        "licence is not None and",
        "licence is None and",
        HEAD,
    ),
    Mutant(
        "a name is looked at after the folder is written",
        hub._require_name,
        "if re.fullmatch(_NAME, name, re.ASCII) is None:",
        "if name == '':",
        AT_ONCE,
    ),
    Mutant(
        "the folder is not uploaded",
        publish._upload,
        "push_to_hub(path,",
        "dict(path=path, name=",
        AT_ONCE,
    ),
    Mutant(
        "a failed upload does not say that the folder is there",
        publish._upload,
        "except BadInput as error:",
        "except ZeroDivisionError as error:",
        AT_ONCE,
    ),
    Mutant(
        "a folder that does not verify is uploaded",
        hub._read_verified_files,
        "if not verification.ok:",
        "if False:",
        UNVERIFIED,
    ),
    Mutant(
        "all files of the folder are uploaded",
        hub._read_verified_files,
        "for name in ENVELOPES & set(contents.strangers)",
        "for name in contents.strangers",
        "check_hidden_files_are_not_pushed",
    ),
    Mutant(
        "envelopes are not uploaded",
        hub._read_verified_files,
        "return certified | around",
        "return certified",
        "check_what_is_pushed_is_what_verifies",
    ),
    Mutant(
        "a repository may hold other files",
        hub._require_no_others,
        "if others:",
        "if False:",
        "check_repositories_with_other_files_are_refused",
    ),
    Mutant(
        "what an earlier model left stays",
        hub.push_to_hub,
        "present & PUBLISHED - set(files)",
        "()",
        "check_an_earlier_model_is_replaced_as_a_whole",
    ),
    Mutant(
        "what the Hub left out is not noticed",
        hub.push_to_hub,
        "if missing := sorted(set(files) - present):",
        "if missing := ():",
        "check_what_the_hub_leaves_out_is_noticed",
    ),
    Mutant(
        "a commit of another is overwritten",
        hub.push_to_hub,
        "parent_commit=parent",
        "parent_commit=None",
        "check_a_commit_of_another_meanwhile_is_not_overwritten",
    ),
    Mutant(
        "strangers on the Hub are not seen",
        hub.Download.verify,
        "sorted(self.strangers | set(contents.strangers))",
        "sorted(contents.strangers)",
        STRANGERS,
    ),
    Mutant(
        "folders with the name of a file are not seen",
        hub._find_strangers,
        'path.partition("/")[0] for path in files - PUBLISHED',
        'path.partition("/")[0] for path in files if path.partition("/")[0] not in PUBLISHED',
        STRANGERS,
    ),
    Mutant(
        "everything is downloaded",
        hub.download,
        "sorted(files & PUBLISHED)",
        "sorted(files)",
        STRANGERS,
    ),
    Mutant(
        "the newest commit is verified, whatever was asked for",
        hub.download,
        "_list_files(hub, name, revision)",
        "_list_files(hub, name, None)",
        "check_the_revision_that_was_asked_for_is_verified",
    ),
    Mutant(
        "files are downloaded by the name of a branch",
        hub.download,
        "revision=commit",
        "revision=revision",
        ONE_COMMIT,
    ),
    Mutant(
        "files may be of other commits than the one that is printed",
        hub.download,
        "!= {(commit, paths[0].parent)}",
        "== 0",
        ONE_COMMIT,
    ),
    Mutant(
        "the publisher's key is not asked for",
        hub.Download.verify,
        "None if key is None else read_public(key)",
        "None",
        "check_the_publishers_key_is_asked_for",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(
    MUTANTS, errors=[TypeError, ValueError, AttributeError, KeyError]
)


@pytest.fixture(scope="module", autouse=True)
def _published() -> None:
    """The folder is published by the code as it is, before anything is planted."""
    assert checks_hub.ADDRESS
    make_folder()
