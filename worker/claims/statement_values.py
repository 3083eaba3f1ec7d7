"""The arguments of workers' statements: arrays, with an element for each claim, whose position the
statements return. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from cmdbus.arrays import any_ids, numbers, packed_ctids, packed_ids, texts, whole
from cmdbus.worker.claims.claim import Claim, ClaimRequest, Finished, LaneRequest

Item = TypeVar("Item")

#: Commands that one round trip moves into their lanes.
_MAX_STRAYS = 500
#: The results of handlers that return nothing.
_NOTHING = {"null"}


def request_values(request: ClaimRequest) -> dict[str, object]:
    queues = request.queues
    # Neither of the two claims knows the other's bytes.
    half = request.bytes // 2 if request.prefetch else request.bytes
    return {
        "claim_domains": texts([domain for domain, _ in queues]),
        "claim_priorities": whole([priority for _, priority in queues]),
        "floors": whole(_floors(request.floors, queues)),
        "quick_floors": whole(_floors(request.quick_floors, queues if request.prefetch else [])),
        "below": request.below,
        "types": texts(request.types),
        "quick_types": texts(request.quick_types if request.prefetch else []),
        "free": request.free,
        "ahead": request.prefetch,
        "bytes": half,
        "bytes_ahead": half,
    }


def oldest_values(request: ClaimRequest) -> dict[str, object]:
    floors = _floors(request.oldest_floors, request.queues)
    # As above.
    return {
        "oldest": request.oldest,
        "oldest_floors": whole(floors),
        "bytes": request.bytes // (3 if request.prefetch else 2),
    }


def lane_values(lanes: LaneRequest) -> dict[str, object]:
    domains, types = _domains_and_types(lanes.types)
    quick_domains, quick_types = _domains_and_types(lanes.quick_types)
    queues = lanes.queues
    return {
        "stray_domains": texts([domain for domain, _ in queues]),
        "stray_priorities": whole([priority for _, priority in queues]),
        "stray_floors": whole(_floors(lanes.floors, queues)),
        "stray_below": lanes.below,
        "stray_types": texts(lanes.types),
        "strays": _MAX_STRAYS,
        "lane_domains": domains,
        "lane_types": types,
        "quick_lane_domains": quick_domains,
        "quick_lane_types": quick_types,
        "shared": texts(lanes.shared),
        "lanes": lanes.free,
        "lanes_ahead": lanes.prefetch,
    }


def claim_values(claims: Sequence[Claim], claimer: int) -> dict[str, object]:
    """What names their rows."""
    return {
        "domains": texts([claim.domain for claim in claims]),
        "priorities": whole([claim.priority for claim in claims]),
        **_fences(claims, claimer),
    }


def fence_values(claims: Sequence[Claim], claimer: int) -> dict[str, object]:
    """What names these claims, without their commands."""
    values = claim_values(claims, claimer)
    del values["command_ids"]
    return values


def completion_values(done: Sequence[Finished], claimer: int) -> dict[str, object]:
    claims = [finished.claim for finished in done]
    results = [finished.outcome.result for finished in done]
    return {
        **_fences(claims, claimer),
        "ctids": packed_ctids([claim.ctid for claim in claims]),
        "max_attempts": whole([finished.max_attempts for finished in done]),
        "results": None if set(results) == _NOTHING else texts(results),
        "batch_ids": any_ids([claim.batch_id for claim in claims]),
    }


def outcome_values(done: Sequence[Finished], claimer: int) -> dict[str, object]:
    outcomes = [finished.outcome for finished in done]
    claims = [finished.claim for finished in done]
    return {
        **claim_values(claims, claimer),
        "kinds": texts(outcome.kind.value for outcome in outcomes),
        "attempts": numbers(f.claim.attempts + f.outcome.charged for f in done),
        "losses": numbers(
            None if f.outcome.lost is None else f.claim.losses + f.outcome.lost for f in done
        ),
        "max_attempts": numbers(finished.max_attempts for finished in done),
        "results": texts(outcome.result for outcome in outcomes),
        "delays": numbers(outcome.delay for outcome in outcomes),
        "codes": texts(outcome.code for outcome in outcomes),
        "messages": texts(outcome.message for outcome in outcomes),
        "details": texts(outcome.details for outcome in outcomes),
        "reply_headers": _any_texts([finished.reply_headers for finished in done]),
        "batch_ids": any_ids([claim.batch_id for claim in claims]),
    }


def positioned(positions: Sequence[int], items: Sequence[Item]) -> list[Item]:
    """SQL names items by position, as a restored server gives ids again."""
    return [items[position - 1] for position in positions]


def _fences(claims: Sequence[Claim], claimer: int) -> dict[str, object]:
    return {
        "ids": whole([claim.id for claim in claims]),
        "tokens": whole([claim.token for claim in claims]),
        "command_ids": packed_ids([claim.command_id for claim in claims]),
        "claimer": claimer,
    }


def _any_texts(values: Sequence[str | None]) -> str | None:
    """None if all are None."""
    return texts(values) if any(values) else None


def _domains_and_types(names: Sequence[str]) -> tuple[str, str]:
    """Of names like "domain type"."""
    pairs = [name.split(" ") for name in names]
    return texts([domain for domain, _ in pairs]), texts([type for _, type in pairs])


def _floors(floors: Mapping[tuple[str, int], int], queues: Sequence[tuple[str, int]]) -> list[int]:
    """The ids above which these queues are read."""
    if not floors:
        return [0] * len(queues)
    return [floors.get(queue, 0) for queue in queues]
