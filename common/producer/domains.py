"""The settings of a domain and their valid values. Pure."""

from collections.abc import Mapping
from datetime import timedelta

from cmdbus.checks import check_flag, check_whole

#: Seconds that commands of a type must wait, while none of them runs, before the type counts as
#: one without a handler: a busy fleet may take as long for a claim.
UNHANDLED_AFTER_SECONDS = 60.0
MAX_KEEP = timedelta(days=36525)


def check_settings(settings: Mapping[str, object]) -> None:
    """The settings to change; None removes a limit."""
    if not settings:
        names = "accepting, max_depth, warn_depth, max_waiting_per_key, keep"
        raise ValueError(f"configure needs at least one setting: {names}")
    for name in ("max_depth", "warn_depth", "max_waiting_per_key"):
        if settings.get(name) is not None:
            check_whole(name, settings[name], 1)
    keep = settings.get("keep", timedelta(0))
    if not isinstance(keep, timedelta) or not timedelta(0) <= keep <= MAX_KEEP:
        raise ValueError(
            f"keep must be a timedelta from 0 to {MAX_KEEP.days} days, not {keep!r:.80}"
        )
    check_flag("accepting", settings.get("accepting", True))
