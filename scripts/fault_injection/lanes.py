"""The types with limits, as the app declares them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cmdbus import HandlerRegistry, RetryPolicy

LANES = "lanes"
#: The limit of two types together.
SHARED = "shared"
_SHARED_CONCURRENCY = 4
_KINDS = {"Noop": 40, "Io": 30, "Tx": 20, "Rule": 3, "Undone": 3, "Transient": 4}
_ORDERED_KINDS = {"Noop": 50, "Tx": 25, "Transient": 15, "Rule": 4, "Io": 4, "Permanent": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedType:
    """Its commands do what those of other types do, which are drawn from `kinds`."""

    #: Arguments of register.
    limits: Mapping[str, Any]
    keys: int
    kinds: Mapping[str, int] = field(default_factory=lambda: _KINDS)


_BLOCKING: Mapping[str, Any] = {"ordered": True, "on_trouble": "block"}
TYPES = {
    "Three": LimitedType(limits={"concurrency": 3}, keys=12),
    # Its limit is the one that operators set.
    "Changed": LimitedType(limits={"concurrency": 3}, keys=4),
    "Blocks": LimitedType(limits=_BLOCKING, keys=6, kinds=_ORDERED_KINDS),
    "Skips": LimitedType(limits={**_BLOCKING, "on_trouble": "skip"}, keys=6, kinds=_ORDERED_KINDS),
    "Rated": LimitedType(limits={"rate": "20/s", "burst": 5}, keys=4),
    "One": LimitedType(limits={"limit": SHARED}, keys=3),
    "Other": LimitedType(limits={"limit": SHARED, "concurrency": 2}, keys=3),
    "Fair": LimitedType(limits={"fair": True}, keys=5),
}


def register_lanes(
    registry: HandlerRegistry, retry: RetryPolicy, function: Callable[..., object]
) -> None:
    registry.limit(SHARED, concurrency=_SHARED_CONCURRENCY)
    for name, limited in TYPES.items():
        registry.register(LANES, name, function, retry=retry, **limited.limits)
