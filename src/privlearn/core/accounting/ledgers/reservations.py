"""This file says until when an approval waits for its run."""

from __future__ import annotations

from datetime import UTC, datetime

from privlearn.errors import BadInput


def write_expiry(time: datetime | None) -> str:
    """A time to come, as entries hold it; empty for None.

    Raises:
        BadInput: it has no zone, or is past.
    """
    if time is None:
        return ""
    if time.tzinfo is None or time <= datetime.now(UTC):
        raise BadInput(
            f"expires is {time.isoformat()}: expected a time to come with its zone, such as "
            "datetime.now(UTC) + timedelta(days=30)"
        )
    return time.astimezone(UTC).isoformat(timespec="seconds")
