"""Planted bugs in schemas that are drafted from a public file, each of which a named check must
catch.
"""

from __future__ import annotations

from privlearn.data import public_draft, schema, table_files
from privlearn.publishing import card
from tests.support.mutant import Mutant, suite_of

UNREAD = "check_private_rows_are_not_read_for_a_public_draft"
DECLARED = "check_private_rows_are_not_declared_public"
READS = "check_a_public_draft_reads_its_own_table"
PUBLISHED = "check_what_a_draft_came_from_is_published"

MUTANTS = [
    Mutant(
        "bounds come from the private rows",
        public_draft.draft_public_schema,
        "_public_columns(public, names, written)",
        "_public_columns(source if isinstance(source, Path) else public, names, dialect)",
        UNREAD,
    ),
    Mutant(
        "any file is declared public",
        public_draft.draft_public_schema,
        "table_files.share_content(source, public)",
        "source == public",
        DECLARED,
    ),
    Mutant(
        "a packed copy is another file",
        table_files.share_content,
        "file.suffix.lower() in _PACKED",
        "False",
        DECLARED,
    ),
    Mutant(
        "a folder is one file alone",
        table_files._files_of,
        "if path.is_dir():",
        "if path.is_dir() and path == path.parent:",
        DECLARED,
    ),
    Mutant("bounds are rounded down", public_draft._around, "ROUND_CEILING", "ROUND_FLOOR", READS),
    Mutant("bounds are rounded widely", public_draft._around, ")) - 1)", ")) + 1)", READS),
    Mutant(
        "what is missing is a category, too",
        public_draft._Column.settings,
        '{"", *missing}',
        '{""}',
        READS,
    ),
    Mutant(
        "days end in the first days of the last year",
        public_draft._Column._of_days,
        "last.replace(month=12, day=31)",
        "last.replace(month=1, day=2)",
        READS,
    ),
    Mutant(
        "the card is silent on drafts",
        card.words_on_columns,
        "describe_draft(table)",
        '""',
        PUBLISHED,
    ),
    Mutant(
        "the configuration is silent on drafts",
        schema.Schema.to_json,
        "**drafted,",
        "",
        PUBLISHED,
    ),
    Mutant(
        "a draft changes what features mean",
        schema.Schema.digest,
        '"classes": self.classes,',
        '"classes": self.classes, "drafted_from": self.drafted_from,',
        PUBLISHED,
    ),
    Mutant(
        "a digest may be any text",
        schema._Reader._read_origin,
        're.fullmatch("[0-9a-f]{64}", texts["sha256"])',
        "True",
        PUBLISHED,
    ),
    Mutant(
        "a file's name may be any text",
        schema._Reader._read_origin,
        '0 < len(texts["file"]) <= 255',
        "True",
        PUBLISHED,
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
