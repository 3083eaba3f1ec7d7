"""The types with limits, as the app declares them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cmdbus import HandlerRegistry, RetryPolicy

LANES, WIDE = "lanes", "lanes.wide"
#: Limits of several types together: their names, and arguments of limit.
SHARED: Mapping[str, Mapping[str, Any]] = {
    "shared": {"concurrency": 4},
    "wide": {"domain": WIDE, "concurrency": 5, "rate": "40/s", "burst": 8},
    "local": {"concurrency": 2, "per": "node"},
}
_KINDS = {"Noop": 40, "Io": 30, "Tx": 20, "Rule": 3, "Undone": 3, "Transient": 4}
_ORDERED_KINDS = {"Noop": 50, "Tx": 25, "Transient": 15, "Rule": 4, "Io": 4, "Permanent": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedType:
    """Its commands do what those of other types do, which are drawn from `kinds`."""

    #: Arguments of register.
    limits: Mapping[str, Any]
    keys: int
    domain: str = LANES
    kinds: Mapping[str, int] = field(default_factory=lambda: _KINDS)


_BLOCKING: Mapping[str, Any] = {"ordered": True, "on_trouble": "block"}
TYPES = {
    "Three": LimitedType(limits={"concurrency": 3}, keys=12),
    # Its limit is the one that operators set.
    "Changed": LimitedType(limits={"concurrency": 3}, keys=4),
    "Blocks": LimitedType(limits=_BLOCKING, keys=6, kinds=_ORDERED_KINDS),
    "Skips": LimitedType(limits={**_BLOCKING, "on_trouble": "skip"}, keys=6, kinds=_ORDERED_KINDS),
    "Rated": LimitedType(limits={"rate": "20/s", "burst": 5}, keys=4),
    "One": LimitedType(limits={"limit": "shared"}, keys=3),
    "Other": LimitedType(limits={"limit": "shared", "concurrency": 2}, keys=3),
    "Local": LimitedType(limits={"limit": ["local"]}, keys=3),
    "Wide": LimitedType(limits={}, keys=3, domain=WIDE),
    "WideOrdered": LimitedType(limits=_BLOCKING, keys=3, domain=WIDE),
    "Fair": LimitedType(limits={"fair": True}, keys=5),
}


def register_lanes(
    registry: HandlerRegistry, retry: RetryPolicy, function: Callable[..., object]
) -> None:
    for name, limits in SHARED.items():
        registry.limit(name, **limits)
    for name, limited in TYPES.items():
        registry.register(limited.domain, name, function, retry=retry, **limited.limits)


def shared_limits(domain: str, limited: LimitedType) -> list[str]:
    """Their names."""
    own = limited.limits.get("limit", ())
    return [
        name
        for name, limits in SHARED.items()
        if name == own or name in own or limits.get("domain") == domain
    ]
