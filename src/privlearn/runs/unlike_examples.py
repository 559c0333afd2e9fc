"""What is said where a plan and the data disagree on whether an example is a row or a person."""

from __future__ import annotations

from privlearn.core.plan import AbstractPlan, Plan


def describe_unlike(plan: AbstractPlan, *, by_index: bool) -> str:
    """What is wrong, and what to do.

    Args:
        plan: whose examples are others than those of the data.
        by_index: whether rows come from a loader or a map-style data set, which has no place for
            ids: these are given beside it.
    """
    rows = plan.unit.rows_per_person
    if isinstance(plan, Plan) and plan.persons:
        return (
            "the plan has persons=True, for clients of a federation that have their rows "
            "themselves (privlearn.flower.train_federated): expected rows_per_person=K for rows of "
            "persons in one place, or persons=False"
        )
    if rows is None:
        how = (
            "rows_per_person=K, or leave out groups=ids"
            if by_index
            else "Plan(rows_per_person=K), or give data without them (an .npz without groups, a "
            "schema without person)"
        )
        return (
            "the data carry person ids (groups), and the plan protects single rows: say how many "
            f"rows of each person are used with {how}, with group_size=K if a person has up to K "
            "rows"
        )
    how = (
        "expected groups=ids beside the loader or data set, as in pv.make_private(..., "
        f"groups=ids, rows_per_person={rows})"
        if by_index
        else "give `person = COLUMN` in a table's schema, groups in an .npz, or Dataset(groups=ids)"
    )
    return (
        f"the plan uses up to {rows} rows of each person, and the data do not say whose rows they "
        f"are: {how}, a person's id for each row"
    )
