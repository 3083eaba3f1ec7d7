"""The invariants about time: leases that must not end, delays that must, and stops. Pure."""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.fleet_checks import STARTS
from fault_injection.grouping import by_call, by_command, is_reserved, pid_of
from fault_injection.history import History, Move, Recovery

#: Faults that keep a steward, or the worker whose claim it renews, from the database or a CPU.
_KEEPS_AWAY = (
    *("stop-", "freeze-", "gil", "stuck", "server-", "outage", "restore", "link-"),
    *("proxy-silent", "proxy-trickle", "proxy-cut", "end-sessions", "lock-", "migrate"),
    *("too-many", "deny", "read-only", "no-standby", "fork-fails", "no-descriptors"),
    *("kill-steward", "kill-supervisor", "end-supervisor", "kill-at-armed", "kill-at-promoted"),
    *("kill-at-before-tick", "kill-at-after-tick", "kill-at-before-move", "kill-at-after-move"),
    *("kill-at-in-rescue", "kill-at-after-rescue", "kill-at-before-fork", "kill-at-in-child"),
    *("kill-at-after-fork", "kill-at-in-reap"),
)
#: A steward that is replaced promotes nothing until its successor is ready.
_KEEPS_STEWARD_AWAY = (*_KEEPS_AWAY, "hup")
#: Faults that keep a worker that lives from settling: from its sessions, its rows, or a CPU.
_KEEPS_FROM_SETTLING = (
    *("stop-", "freeze-", "server-", "outage", "restore", "link-", "proxy-", "end-sessions"),
    *("lock-", "snapshot", "migrate", "too-many", "deny", "read-only", "no-standby"),
    *("fork-fails", "no-descriptors", "gil"),
)
#: Faults that keep a producer from its answers.
_KEEPS_CALLERS_AWAY = (
    *("proxy-", "server-", "outage", "restore", "link-", "too-many", "deny", "end-sessions"),
    *("stop-backend", "lock-table", "migrate"),
)
#: Seconds within which the outcome of a handler that has returned is settled.
_SETTLED_S = 1.5
#: Seconds from the end of a command until the call that waits for it returns.
_ANSWERED_S = 1.0
#: Seconds by which a fault counts as begun earlier, and as recovered from later, than recorded.
_NEAR_S = 1.0
#: Seconds by which the line about the exit of a process may be later than what follows from it.
_LOGGED_S = 2.0
#: Seconds from the due time of a command until it is in ready, and from there until it is claimed.
_PROMOTED_S, _STARTED_S = 2.0, 10.0
#: As many claims in that time are a backlog, in which a command may wait for its turn.
_BACKLOG = 20
#: Seconds after an outage within which each instance claims and each producer is answered.
_WORKS_S = 2.0
_STOPPED = re.compile(r"(?:worker \d+|quarantine) has stopped, pid (\d+)$")
_EXITED = re.compile(r"(?:worker \d+|quarantine), pid (\d+), (?:exited with|was killed by)")


def leases_of_the_living_are_renewed(history: History) -> Iterator[str]:
    """The end of a lease needs a process that has exited, or one that was kept away."""
    homes = instances_of(history)
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


def stops_lose_no_outcome(history: History) -> Iterator[str]:
    """A process that stopped by itself, within its drain, has settled what had returned."""
    homes = instances_of(history)
    stops = {int(m[1]): line.at for line in history.lines if (m := _STOPPED.match(line.message))}
    claims = {(m.command_id, m.token): m.at for m in history.moves if m.what == "claim"}
    returns = defaultdict(list)
    for mark in history.marks:
        if mark.what == "returned":
            returns[mark.command_id, mark.pid].append(mark.at)
    for event in history.events:
        pid = pid_of(history.workers.get(event.claimer or 0, ""))
        if event.code not in ("STOPPED", "LEASE_ENDED") or pid not in stops:
            continue
        claimed = claims.get((event.command_id, event.token or 0), event.at)
        ended = min(event.at, stops[pid])
        for at in returns[event.command_id, pid]:
            in_time = claimed <= at <= ended - _SETTLED_S
            if in_time and not _kept_away(history, homes.get(pid), at, ended, _KEEPS_FROM_SETTLING):
                yield (
                    f"command {event.command_id}: {pid}, which stopped in order, had returned from "
                    f"it {ended - at:.1f} s before it was lost as {event.code}"
                )


def outages_are_over_in_time(history: History) -> Iterator[str]:
    """For workers and for producers, whatever the backlog is."""
    homes = instances_of(history)
    claims = [
        (homes.get(pid_of(history.workers.get(move.claimer or 0, ""))), move.at)
        for move in history.moves
        if move.what == "claim"
    ]
    answers = [
        (call.name.partition(".")[0], call.ended)
        for call in history.calls
        if call.outcome == "ok" and "." in call.name
    ]
    for one in history.recoveries:
        if not one.kind.startswith("outage-"):
            continue
        for what, found in (("claimed", claims), ("was answered", answers)):
            before = {name for name, at in found if name is not None and at < one.began}
            after = {name for name, at in found if one.ended < at <= one.ended + _WORKS_S}
            for name in sorted(before - after):
                yield f"{name} {what} nothing within {_WORKS_S:g} s after fault {one.fault}"


def calls_end_with_their_commands(history: History) -> Iterator[str]:
    """Or time out before."""
    rows = by_call(history.rows)
    settled = ("finished+", "troubleshooting+")
    ends = {move.command_id: move.at for move in history.moves if move.what in settled}
    for call in history.calls:
        for row in rows.get(call.name, ()) if call.timed_out else ():
            ended = ends.get(row.command_id, call.ended)
            if ended < call.ended - _ANSWERED_S and not _kept_away(
                history, None, ended, call.ended, _KEEPS_CALLERS_AWAY
            ):
                yield (
                    f"call {call.name} timed out {call.ended - ended:.1f} s after its command "
                    f"{row.command_id} had ended"
                )


def delayed_start_in_time(history: History) -> Iterator[str]:
    claimed = sorted(move.at for move in history.moves if move.what == "claim")
    waited = {move.command_id for move in history.moves if move.what == "limited+"}
    # One instance may have others to run first.
    waited |= {row.command_id for row in history.rows if is_reserved(row)}
    for id_, moves in by_command(history.moves).items():
        if id_ in waited:  # for a limit
            continue
        for index, move in enumerate(moves[:-1]):
            if move.what == "scheduled+":
                yield from _late(history, [*moves[index : index + 4]], claimed)


def _late(history: History, moves: Sequence[Move], claimed: Sequence[float]) -> Iterator[str]:
    scheduled, *after = moves
    id_, due_at = scheduled.command_id, scheduled.due_at or 0.0
    ready = next((move for move in after if move.what == "ready+"), None)
    if ready is None:  # canceled
        return
    if ready.at > due_at + _PROMOTED_S and not stewards_kept_away(history, due_at, ready.at):
        yield f"command {id_} was claimable {ready.at - due_at:.1f} s after it was due"
    claim = next((move for move in after if move.what == "claim"), None)
    if claim is None or claim.at <= ready.at + _STARTED_S:
        return
    others = bisect(claimed, claim.at) - bisect(claimed, ready.at)
    if others < _BACKLOG and not _disturbed(history, ready.at, claim.at):
        yield f"command {id_} was claimed {claim.at - ready.at:.1f} s after it was claimable"


def stewards_kept_away(history: History, began: float, ended: float) -> bool:
    return all(
        _kept_away(history, name, began, ended, _KEEPS_STEWARD_AWAY)
        for name in set(instances_of(history).values())
    )


def a_steward_kept_away(history: History, began: float, ended: float) -> bool:
    """One of them."""
    return any(
        _kept_away(history, name, began, ended, _KEEPS_STEWARD_AWAY)
        for name in set(instances_of(history).values())
    )


def instances_of(history: History) -> Mapping[int, str]:
    """The instances of workers, by pid."""
    return {
        int(match[2]): line.instance
        for line in history.lines
        if (match := STARTS.match(line.message))
    }


def _kept_away(
    history: History,
    instance: str | None,
    began: float,
    ended: float,
    kinds: tuple[str, ...] = _KEEPS_AWAY,
) -> bool:
    """The processes of an instance, or of one that nothing is known of."""
    return _stalled(history, began, ended) or any(
        one.kind.startswith(kinds)
        and (instance is None or instance in one.instances)
        and _overlaps(one, began, ended)
        for one in history.recoveries
    )


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
