"""The invariants of commands: of their rows, claims, executions and effects. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from cmdbus.database.session_names import incarnation_of
from fault_injection.bridging import REFUSED
from fault_injection.grouping import (
    SETTLED,
    by_command,
    completed_by_operators,
    entries,
    is_of_process,
    moved_into_lanes,
    named,
    pid_of,
)
from fault_injection.handlers import UNHANDLED
from fault_injection.history import Event, History
from fault_injection.iterating import ITERATE
from fault_injection.oddities import KEPT
from fault_injection.selecting import TAGGED

_SLACK_S = 0.05
#: Seconds by which the difference of two of the server's times may be rounded.
_ROUNDING_S = 0.00001
_LEASE_ENDED = "LEASE_ENDED"
_INNOCENT = ("LOST", "TIMEOUT", "CRASHED")
_ENDS: dict[str, tuple[tuple[str, str | None], ...]] = {
    **dict.fromkeys(("Noop", "Tx", "Io", "Long", "Grow", "Stuck", ITERATE), (("COMPLETED", None),)),
    "Transient": (("COMPLETED", None), ("IN_TROUBLESHOOTING_QUEUE", "TRANSIENT")),
    TAGGED: (("COMPLETED", None),),
    REFUSED: (("IN_TROUBLESHOOTING_QUEUE", "BRIDGE_REFUSED"),),
    **dict.fromkeys(
        ("Bound", "Inside"), (("COMPLETED", None), ("IN_TROUBLESHOOTING_QUEUE", "DOWN"))
    ),
    "Permanent": (("IN_TROUBLESHOOTING_QUEUE", "PERMANENT"),),
    "Rule": (("FAILED", "RULE"),),
    **dict.fromkeys(("Big", "LogHangs"), (("COMPLETED", None),)),
    # It finds no thread that it could start.
    "Keep": (("COMPLETED", None), ("IN_TROUBLESHOOTING_QUEUE", "RuntimeError")),
    "OddResult": (("IN_TROUBLESHOOTING_QUEUE", "RESULT_NOT_STORABLE"),),
    "OddError": (("IN_TROUBLESHOOTING_QUEUE", "ODD"),),
    **{
        name: (("IN_TROUBLESHOOTING_QUEUE", name),)
        for name in ("SystemExit", "KeyboardInterrupt", "CancelledError")
    },
    "Undone": (("FAILED", "RULE"),),
    # Its batch is being canceled.
    "Adds": (("COMPLETED", None), ("FAILED", "RULE")),
    # A session that waits for a frozen session's row waits in vain.
    "Cross": (
        ("COMPLETED", None),
        ("IN_TROUBLESHOOTING_QUEUE", "DeadlockDetected"),
        ("IN_TROUBLESHOOTING_QUEUE", "QueryCanceled"),
    ),
    **dict.fromkeys(("Segfault", "Exit", "Gil", "GilShort", "AbortLater"), (("COMPLETED", None),)),
}
#: The codes of commands that are canceled without an operator.
_BY_ITSELF = ("EXPIRED", "REPLACED")
_EFFECTIVE = ("Tx", "Adds", "Cross", "Keep")
#: What a handler may meet that is not its command's fault: it is tried again, uncharged.
_OUTSIDE = (
    *("ReadOnlySqlTransaction", "FeatureNotSupported", "TooManyConnections", "AdminShutdown"),
    "IdleInTransactionSessionTimeout",
)


def one_end(history: History) -> Iterator[str]:
    for id_, count in Counter(row.command_id for row in history.rows).items():
        if count > 1:
            yield f"command {id_} has {count} rows"
    canceled = {row.command_id for row in history.rows if row.status == "CANCELED"}
    for call in history.calls:
        if call.way == "cancel" and call.outcome == "ok":
            for id_ in set(call.ids) - canceled:
                yield f"{id_} was canceled, and is not"
    ways = ("cancel", "cancel-batch", "cancel-trouble")
    asked = {id_ for call in history.calls if call.way in ways for id_ in call.ids}
    for row in history.rows:
        is_asked = row.command_id in asked or row.batch in asked or is_of_process(row)
        if row.status == "CANCELED" and not is_asked and row.code not in _BY_ITSELF:
            yield f"{named(row)} is canceled, and no cancel was sent"
    for id_, moves in by_command(history.moves).items():
        ends = [move for move in moves if move.what == "finished+"]
        if len(ends) > 1:
            yield f"command {id_} was finished {len(ends)} times"
        if ends and any(move.xid != ends[0].xid for move in moves if move.number > ends[0].number):
            yield f"command {id_} went on after its end"
    replies = Counter(row.answers for row in history.rows if row.answers is not None)
    for row in history.rows:
        wanted = int(row.table == "finished" and row.reply_to is not None)
        if row.answers is None and replies[row.command_id] != wanted:
            yield f"{named(row)} has {replies[row.command_id]} replies"


def ends_as_its_handler_says(history: History) -> Iterator[str]:
    """Or by a fault, which must have been recorded."""
    events: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        events[event.command_id].append(event)
    # A takeover of a claim whose lease has ended is recorded nowhere else.
    takeovers = Counter(
        move.command_id
        for move in history.moves
        if move.what == "claim" and move.claimer_before is not None
    )
    completed = completed_by_operators(history)
    for row in history.rows:
        if row.answers is not None or row.table not in SETTLED or row.status == "CANCELED":
            continue
        if row.type == UNHANDLED or row.type.startswith("process:") or row.command_id in completed:
            continue
        if (row.status, row.code) in _ENDS[row.type]:
            continue
        if row.status != "IN_TROUBLESHOOTING_QUEUE" or row.code not in _INNOCENT:
            if not (row.code == "EXHAUSTED" and len(events[row.command_id]) > 1):
                yield f"{named(row)} ended as {row.status} {row.code}"
        elif len(events[row.command_id]) + takeovers[row.command_id] < 2 and row.code != "CRASHED":
            yield f"{named(row)} ended as {row.code}, and its events do not say why"


def tokens_count_up(history: History) -> Iterator[str]:
    for id_, moves in by_command(history.moves).items():
        token = 0
        claimers: dict[int, int | None] = {}
        for move in moves:
            if move.token_before is not None and (move.token_before, move.token) != (
                token,
                token + 1,
            ):
                yield f"command {id_}: token {move.token_before} -> {move.token} after {token}"
            elif move.token_before is None and move.token != token:
                yield f"command {id_}: {move.what} with token {move.token} after {token}"
            token = move.token
            if move.what == "claim" and claimers.setdefault(token, move.claimer) != move.claimer:
                yield f"command {id_}: token {token} has two claimers"


def only_the_claimer_ends_a_claim(history: History) -> Iterator[str]:
    """Or a steward releases it, or an operator or a producer cancels it. An accepted outcome is
    its claimer's."""
    canceled = {row.command_id for row in history.rows if row.status == "CANCELED"}
    # Another worker cancels what a process has sent, as a deadline has passed, and its timers.
    expired = {row.command_id for row in history.rows if is_of_process(row)} & canceled
    into_lanes = moved_into_lanes(history.moves)
    for move in history.moves:
        if move.what not in ("ready-", "release") or move.command_id in expired:
            continue
        if move.number in into_lanes:
            continue
        by = incarnation_of(move.session)
        if by is None:
            if move.what == "release" or move.command_id not in canceled:
                yield f"command {move.command_id}: a claim was ended by {move.session}"
        elif not history.workers.get(by, "").startswith("steward:") and by != move.claimer_before:
            yield (
                f"command {move.command_id}: incarnation {by} did {move.what} on the claim of "
                f"{move.claimer_before} (token {move.token_before or move.token})"
            )
    claimers = {row.command_id: row.claimer for row in history.rows}
    for effect in history.effects:
        claimer = claimers.get(effect.command_id)
        if incarnation_of(effect.session) != claimer:
            yield (
                f"command {effect.command_id}: its effect is of {effect.session}, "
                f"and its end of {claimer}"
            )
    pids = {mark.run: mark.pid for mark in history.marks}
    for row in history.rows:
        if row.run is not None and not _is_of(history, row.claimer, pids.get(row.run)):
            yield f"{named(row)} has the result of {row.run}, and not one of its claimer"


def claims_do_not_overlap(history: History) -> Iterator[str]:
    into_lanes = moved_into_lanes(history.moves)
    for move in history.moves:
        takes = move.what == "claim" or move.number in into_lanes
        held = takes and move.claimer_before is not None
        if held and (move.lease_before or 0.0) > move.at:
            yield (
                f"command {move.command_id} was claimed {(move.lease_before or 0) - move.at:.3f} s "
                f"before the lease of {move.claimer_before} ended"
            )


def each_execution_has_a_claim(history: History) -> Iterator[str]:
    claims: dict[str, list[float]] = defaultdict(list)
    of_process: Counter[tuple[str, int]] = Counter()
    for move in history.moves:
        if move.what == "claim":
            claims[move.command_id].append(move.at)
            of_process[move.command_id, pid_of(history.workers.get(move.claimer or 0, ""))] += 1
    begun: Counter[str] = Counter()
    of_pid: Counter[tuple[str, int]] = Counter()
    for mark in entries(history.marks):
        begun[mark.command_id] += 1
        of_pid[mark.command_id, mark.pid] += 1
        before = sum(at <= mark.at + _SLACK_S for at in claims[mark.command_id])
        if before < begun[mark.command_id]:
            yield (
                f"command {mark.command_id}: execution {begun[mark.command_id]} began after "
                f"{before} claims"
            )
        if of_pid[mark.command_id, mark.pid] > of_process[mark.command_id, mark.pid]:
            yield f"command {mark.command_id}: {mark.pid} ran it more often than it claimed it"


def effects_are_there_once(history: History) -> Iterator[str]:
    own = [effect for effect in history.effects if not effect.run.endswith(KEPT)]
    effects = Counter(effect.command_id for effect in own)
    without = completed_by_operators(history)
    for row in history.rows:
        is_effective = row.type in _EFFECTIVE and row.command_id not in without
        wanted = int(is_effective and row.status == "COMPLETED")
        if effects.pop(row.command_id, 0) != wanted:
            found = sum(effect.command_id == row.command_id for effect in own)
            yield f"{named(row)} is {row.status} and has {found} effects"
    for id_ in effects:
        yield f"an effect of {id_}, which is nowhere"


def effects_are_of_what_was_settled(history: History) -> Iterator[str]:
    """Of the execution whose result was kept, in the transaction that kept it. A thread that
    outlives its handler may have added to that, and to no other."""
    runs = {row.command_id: row.run for row in history.rows}
    ends = {move.command_id: move.xid for move in history.moves if move.what == "finished+"}
    for effect in history.effects:
        if effect.run.removesuffix(KEPT) != runs.get(effect.command_id):
            yield (
                f"command {effect.command_id}: its effect is of {effect.run}, "
                f"and its result of {runs.get(effect.command_id)}"
            )
        elif effect.xid != ends.get(effect.command_id):
            yield (
                f"command {effect.command_id}: {effect.run} wrote in transaction {effect.xid}, "
                f"and it was settled in {ends.get(effect.command_id)}"
            )


def runs_are_explained(history: History) -> Iterator[str]:
    """Completed by an execution that returned; and each execution has ended in exactly one of:
    settled, a loss, given back because of an order to stop, or cut off from its database. Of
    each process: what one did not end is not excused by what another had not begun. Replies
    that were lost on the way do not matter: this is what the database has recorded."""
    returned = {mark.run for mark in history.marks if mark.what == "returned"}
    by_others = completed_by_operators(history)
    for row in history.rows:
        if row.answers is not None or row.status != "COMPLETED":
            continue
        if row.type.startswith("process:") or row.command_id in by_others:
            continue
        if row.run not in returned:
            yield f"{named(row)} was completed by {row.run}, which did not return"
    runs = Counter((mark.command_id, mark.pid) for mark in entries(history.marks))
    ends = _ends_of_executions(history)
    for (id_, pid), count in runs.items():
        if count > ends[id_, pid]:
            yield f"command {id_}: {pid} ran it {count} times, and {ends[id_, pid]} have ended"


def ended_leases_are_recorded(history: History) -> Iterator[str]:
    """A claim of a row that another claim still had leaves an event of that one's token; so does
    its move to where it waits at a limit."""
    events = Counter(
        (event.command_id, event.token) for event in history.events if event.code == _LEASE_ENDED
    )
    into_lanes = moved_into_lanes(history.moves)
    for move in history.moves:
        takes = move.what == "claim" or move.number in into_lanes
        if takes and move.claimer_before is not None:
            before = move.token if move.token_before is None else move.token_before
            key = move.command_id, before
            if events[key] != 1:
                yield f"command {key[0]}: {events[key]} events of the lost claim {key[1]}"


def _ends_of_executions(history: History) -> Counter[tuple[str, int]]:
    """By command and process: at most one for each claim."""
    ends: Counter[tuple[str, int]] = Counter()
    for move in history.moves:
        # Settled or canceled; or its lease has ended, which the next claim counts as a loss.
        if move.what in ("ready-", "claim") and move.claimer_before is not None:
            ends[move.command_id, pid_of(history.workers.get(move.claimer_before, ""))] += 1
    for event in history.events:
        # The end of a lease is the next claim's move, above.
        if event.kind == "LOST" and event.code != _LEASE_ENDED:
            ends[event.command_id, pid_of(history.workers.get(event.claimer or 0, ""))] += 1
    return ends


def attempts_are_bounded(history: History) -> Iterator[str]:
    for row in history.rows:
        most = row.max_attempts or history.limits.max_attempts
        if row.attempts > most:
            yield f"{named(row)} has {row.attempts} attempts of {most}"
    for event in history.events:
        if event.code in _OUTSIDE:
            yield f"command {event.command_id} was charged for {event.code}"
    for id_, moves in by_command(history.moves).items():
        for one, next_ in pairwise(moves):
            if (one.what, next_.what, next_.attempts) == ("troubleshooting-", "ready+", 0):
                continue  # An operator lets it run again.
            if next_.attempts - one.attempts not in (0, 1) or (
                next_.what in ("claim", "release") and next_.attempts != one.attempts
            ):
                yield f"command {id_}: {next_.what}, attempts {one.attempts} -> {next_.attempts}"


def not_before_its_time(history: History) -> Iterator[str]:
    limits = history.limits
    began = {call.name: call.began for call in history.calls}
    asked = {row.command_id: row for row in history.rows if row.delay}
    for id_, moves in by_command(history.moves).items():
        for one, next_ in zip([None, *moves], moves, strict=False):
            if next_.what == "claim" and (next_.due_at or 0.0) > next_.at:
                yield f"command {id_} was claimed {(next_.due_at or 0) - next_.at:.3f} s early"
            if next_.what != "scheduled+":
                continue
            if one is None:
                row = asked.get(id_)
                at = began.get(row.call or "", 0.0) + row.delay if row is not None else 0.0
                if (next_.due_at or 0.0) < at - _SLACK_S:
                    yield f"command {id_} is due {at - (next_.due_at or 0.0):.3f} s early"
            elif next_.attempts > one.attempts:
                backoff = limits.backoff[min(next_.attempts, len(limits.backoff)) - 1]
                # The server adds the backoff to its clock while it executes the statement.
                lies = (next_.due_at or 0.0) - next_.began
                if lies < backoff * (1 - limits.jitter) - _ROUNDING_S:
                    yield f"command {id_}: again {lies:.3f} s after attempt {next_.attempts}"


def _is_of(history: History, claimer: int | None, pid: int | None) -> bool:
    return pid is not None and pid_of(history.workers.get(claimer or 0, "")) == pid
