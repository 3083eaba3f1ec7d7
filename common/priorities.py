"""Priorities of commands, and their labels. Pure."""

from collections.abc import Mapping

HIGHEST, LOWEST = 0, 10
PRIORITIES: Mapping[str, int] = {"high": 0, "normal": 5, "low": 10}


def check_priority(priority: str | int, labels: Mapping[str, int], what: str = "priority") -> int:
    if isinstance(priority, str) and priority in labels:
        return labels[priority]
    whole = isinstance(priority, int) and not isinstance(priority, bool)
    if whole and HIGHEST <= int(priority) <= LOWEST:
        return int(priority)
    known = "".join(f"{label!r}, " for label in labels)
    raise ValueError(
        f"{what} must be {known}or a whole number from {HIGHEST} (first) to {LOWEST} (last), "
        f"not {priority!r:.80}"
    )
