"""The invariants about time: leases that must not end, delays that must. Pure."""

import re
from collections.abc import Iterator, Mapping

from storms.fleet_checks import STARTS
from storms.grouping import by_command, pid_of
from storms.history import History, Move, Recovery

#: Faults that keep a steward, or the worker whose claim it renews, from the database or a CPU.
_KEEPS_AWAY = (
    *("stop-", "freeze-", "gil", "stuck", "server-", "outage", "restore", "link-"),
    *("proxy-silent", "proxy-trickle", "proxy-cut", "end-sessions", "lock-table", "migrate"),
    *("too-many", "deny", "read-only", "fork-fails"),
    *("kill-steward", "kill-supervisor", "end-supervisor", "kill-at-armed", "kill-at-promoted"),
    *("kill-at-in-rescue", "kill-at-after-rescue", "kill-at-before-fork", "kill-at-in-child"),
    *("kill-at-after-fork", "kill-at-in-reap"),
)
#: Seconds by which a fault counts as begun earlier, and as recovered from later, than recorded.
_NEAR_S = 1.0
#: Seconds by which the line about the exit of a process may be later than what follows from it.
_LOGGED_S = 2.0
#: Seconds from the due time of a command until it is in ready, and from there until it is claimed.
_PROMOTED_S, _STARTED_S = 2.0, 10.0
_EXITED = re.compile(r"(?:worker \d+|alone), pid (\d+), (?:exited with|was killed by)")


def leases_of_the_living_are_renewed(history: History) -> Iterator[str]:
    """The end of a lease needs a process that has exited, or one that was kept away."""
    homes = _homes(history)
    exits = {int(m[1]): line.at for line in history.lines if (m := _EXITED.match(line.message))}
    for move in history.moves:
        if move.what != "claim" or move.claimer_before is None:
            continue
        pid = pid_of(history.workers.get(move.claimer_before, ""))
        began = (move.lease_before or move.at) - history.limits.lease
        has_exited = exits.get(pid, float("inf")) <= move.at + _LOGGED_S
        if not has_exited and not _kept_away(history, homes.get(pid), began, move.at):
            yield (
                f"command {move.command_id}: the lease of {pid} ended at "
                f"{move.lease_before or move.at:.1f}, though the process and its steward lived"
            )


def delayed_start_in_time(history: History) -> Iterator[str]:
    for id_, moves in by_command(history.moves).items():
        for index, move in enumerate(moves[:-1]):
            if move.what == "scheduled+":
                yield from _late(history, id_, [*moves[index + 1 : index + 4]], move)


def _late(history: History, id_: str, after: list[Move], scheduled: Move) -> Iterator[str]:
    due_at = scheduled.due_at or 0.0
    ready = next((move for move in after if move.what == "ready+"), None)
    if ready is None:  # canceled
        return
    if ready.at > due_at + _PROMOTED_S and not _all_kept_away(history, due_at, ready.at):
        yield f"command {id_} was claimable {ready.at - due_at:.1f} s after it was due"
    claim = next((move for move in after if move.what == "claim"), None)
    late = claim is not None and claim.at > ready.at + _STARTED_S
    if claim is not None and late and not _disturbed(history, ready.at, claim.at):
        yield f"command {id_} was claimed {claim.at - ready.at:.1f} s after it was claimable"


def _homes(history: History) -> Mapping[int, str]:
    """The instances of workers, by pid."""
    return {
        int(match[2]): line.instance
        for line in history.lines
        if (match := STARTS.match(line.message))
    }


def _kept_away(history: History, instance: str | None, began: float, ended: float) -> bool:
    """The processes of an instance, or of one that nothing is known of."""
    return _stalled(history, began, ended) or any(
        one.kind.startswith(_KEEPS_AWAY)
        and (instance is None or instance in one.instances)
        and _overlaps(one, began, ended)
        for one in history.recoveries
    )


def _all_kept_away(history: History, began: float, ended: float) -> bool:
    return all(_kept_away(history, name, began, ended) for name in _homes(history).values())


def _disturbed(history: History, began: float, ended: float) -> bool:
    """By any fault at all."""
    return _stalled(history, began, ended) or any(
        _overlaps(one, began, ended) for one in history.recoveries
    )


def _overlaps(one: Recovery, began: float, ended: float) -> bool:
    recovered = float("inf") if one.seconds is None else one.ended + one.seconds + _NEAR_S
    return one.began - _NEAR_S <= ended and began <= recovered


def _stalled(history: History, began: float, ended: float) -> bool:
    return any(stall.began <= ended and began <= stall.ended for stall in history.stalls)
