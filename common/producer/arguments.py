"""What the calls of operators have in common. Pure."""

from typing import Any

from cmdbus.checks import check_operator, check_text, check_whole


class _NotGiven:
    """The default of an argument for which None means "no limit"."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN: Any = _NotGiven()


def check_remark(operator: str | None, reason: str | None) -> dict[str, object]:
    return {
        "operator": None if operator is None else check_operator(operator),
        "reason": check_text("reason", reason),
    }


def check_latest(latest: int | None) -> int | None:
    """How many of the latest events are read; None: all."""
    return None if latest is None else check_whole("latest", latest, 1)
