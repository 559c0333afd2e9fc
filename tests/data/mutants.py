"""Planted bugs in how data are read, each of which a named check must catch."""

from __future__ import annotations

from privlearn.cli.commands import predict
from privlearn.data import catalogue, dataset, encoding, formats, named, schema, tables, torch_rows
from privlearn.runs import structured
from tests.support.mutant import Mutant, suite_of

MUTANTS = [
    Mutant(
        "values that are no numbers are finite",
        dataset.require_finite,
        'values.dtype.kind not in "fiub"',
        "False",
        "check_what_is_no_data_is_refused",
    ),
    Mutant(
        "two rows are a pair",
        dataset.Dataset.of,
        "not isinstance(data, tuple | list) or ",
        "",
        "check_what_is_no_data_is_refused",
    ),
    Mutant(
        "half of the pixels' range",
        formats.digits,
        "high=16.0",
        "high=32.0",
        "check_declared_ranges_fit_the_data",
    ),
    Mutant(
        "a range twice as wide",
        formats.breast_cancer,
        "0.31",
        "0.62",
        "check_declared_ranges_fit_the_data",
    ),
    Mutant(
        "a range that cuts rows",
        formats.breast_cancer,
        "2510",
        "2500",
        "check_declared_ranges_fit_the_data",
    ),
    Mutant(
        "bounds read off the rows",
        encoding._numbers,
        "clip(column.low, column.high)",
        "clip(max(column.low, values.min()), min(column.high, values.max() - 1))",
        "check_each_row_is_encoded_by_itself",
    ),
    Mutant(
        "numbers are not clipped",
        encoding._numbers,
        ".clip(column.low, column.high)",
        ".clip(column.low - 1, column.high + 1)",
        "check_rows_are_encoded_as_declared",
    ),
    Mutant(
        "missing numbers count as the mean of the others",
        encoding._numbers,
        "values[row], absent[row] = column.missing, 1.0",
        "values[row] = values[:row].mean() if row else column.low",
        "check_rows_are_encoded_as_declared",
    ),
    Mutant(
        "anything that float() takes is a number",
        encoding._numbers,
        "not _NUMBER.fullmatch(text)",
        "False",
        "check_numbers_that_are_none_are_refused",
    ),
    Mutant(
        "NaN in a Parquet file is a number",
        encoding._numbers,
        "not np.isfinite(values).all()",
        "False",
        "check_numbers_that_are_none_are_refused",
    ),
    Mutant(
        "unknown categories count as the first",
        encoding._indicators,
        "_text(table, row, column.name, cell))",
        "_text(table, row, column.name, cell), 0)",
        "check_rows_are_encoded_as_declared",
    ),
    Mutant(
        "unknown classes count as the first",
        encoding._labels,
        "_text(table, row, target, cell))",
        "_text(table, row, target, cell), 0)",
        "check_unknown_classes_are_refused",
    ),
    Mutant(
        "dates count from the latest before",
        encoding._days,
        "(day - column.low).days",
        "(day - column.low).days - max([d for d in days if d], default=0)",
        "check_dates_and_missing_values_are_encoded_as_declared",
    ),
    Mutant(
        "an indicator counts missing values so far",
        encoding._numbers,
        "column.missing, 1.0",
        "column.missing, absent.sum()",
        "check_dates_and_missing_values_are_encoded_as_declared",
    ),
    Mutant(
        "rows that are too long are cut",
        tables.parse_csv,
        "len(row) != len(header)",
        "len(row) < len(header)",
        "check_tables_without_a_clear_reading_are_refused",
    ),
    Mutant(
        "of two columns the first is taken",
        tables.parse_csv,
        "part in header[:at]",
        "False",
        "check_tables_without_a_clear_reading_are_refused",
    ),
    Mutant(
        "quotes may stay open",
        tables._csv_rows,
        "strict=True, ",
        "",
        "check_tables_without_a_clear_reading_are_refused",
    ),
    Mutant(
        "the digest leaves out bounds and categories",
        schema.Schema.digest,
        "**asdict(column)",
        '"name": column.name',
        "check_schemas_that_mean_something_else_have_another_digest",
    ),
    Mutant(
        "the digest does not know the order of classes",
        schema.Schema.digest,
        '"classes": self.classes',
        '"classes": sorted(self.classes)',
        "check_schemas_that_mean_something_else_have_another_digest",
    ),
    Mutant(
        "any schema may predict",
        predict._require_same_schema,
        "if digest and digest != trained",
        "if False",
        "check_models_predict_by_their_own_schema_only",
    ),
    Mutant(
        "named data may be any bytes",
        catalogue.File.read,
        "digest != self.sha256",
        "False",
        "check_only_published_bytes_are_read",
    ),
    Mutant(
        "named data are split by label",
        formats._split,
        "np.random.default_rng(0).permutation(len(x))",
        'np.argsort(y, kind="stable")',
        "check_splits_do_not_look_at_rows",
    ),
    Mutant(
        "downloads are not compared with their digest",
        named._retrieve,
        'f"sha256:{source.sha256}"',
        "None",
        "check_wrong_downloads_are_not_kept",
    ),
    Mutant(
        "a shuffling loader may be priced as sampled",
        structured.dataset_of,
        "sampling != Shuffle(size)",
        "False",
        "check_loaders_are_priced_as_they_shuffle",
    ),
    Mutant(
        "loaders may draw with replacement",
        torch_rows.shuffled_batch_size,
        "loader.sampler.replacement",
        "False",
        "check_loaders_that_draw_otherwise_are_refused",
    ),
    Mutant(
        "loaders may have any sampler",
        torch_rows.shuffled_batch_size,
        "type(loader.sampler) is not RandomSampler",
        "not isinstance(loader.sampler, RandomSampler)",
        "check_loaders_that_draw_otherwise_are_refused",
    ),
    Mutant(
        "loaders may mix rows as they collate",
        torch_rows.shuffled_batch_size,
        "is not default_collate",
        "is None",
        "check_loaders_that_draw_otherwise_are_refused",
    ),
]

test_the_planted_bug_is_caught, test_every_mutant_names_a_check_that_exists = suite_of(MUTANTS)
