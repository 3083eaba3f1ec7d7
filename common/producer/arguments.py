"""What the calls of operators have in common. Pure."""

from typing import Any

from cmdbus.checks import check_operator, check_text


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
