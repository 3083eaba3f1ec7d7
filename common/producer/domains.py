"""The settings of a domain and their valid values. Pure."""

from collections.abc import Mapping
from datetime import timedelta

from cmdbus.checks import check_flag, check_whole

SETTINGS = ("accepting", "max_depth", "warn_depth", "keep")
#: Seconds that commands of a type must wait, while none of them runs, before the type counts as
#: one without a handler: less is usual between a send and a claim by a busy fleet.
UNHANDLED_AFTER_SECONDS = 60.0
MAX_KEEP = timedelta(days=36525)


def check_settings(text: Mapping[str, object]) -> None:
    """What a caller wants changed; None takes a limit away."""
    if not text:
        raise ValueError(f"configure needs at least one setting: {', '.join(SETTINGS)}")
    for name in ("max_depth", "warn_depth"):
        if text.get(name) is not None:
            check_whole(name, text[name], 1)
    keep = text.get("keep", timedelta(0))
    if not isinstance(keep, timedelta) or not timedelta(0) <= keep <= MAX_KEEP:
        raise ValueError(
            f"keep must be a timedelta from 0 to {MAX_KEEP.days} days, not {keep!r:.80}"
        )
    check_flag("accepting", text.get("accepting", True))
