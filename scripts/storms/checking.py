"""The invariants, each a function of a history that yields what breaks it. Pure.

They are numbered as in the project's list of faults; NOT_CHECKED names the others.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cmdbus.sessions import incarnation_of
from storms.fleet_checks import (
    connections_are_bounded,
    counters_never_fall,
    counts_agree,
    every_source_was_heard,
    everything_works_again,
    fleets_are_bounded,
    no_process_is_left,
    no_secret_is_told,
    none_claims_after_its_stop,
    restarts_have_causes,
    the_server_is_content,
)
from storms.grouping import by_call, by_command, entries, named, pid_of
from storms.handlers import UNHANDLED
from storms.history import Call, Event, History, Restore
from storms.oddities import KEPT
from storms.time_checks import delayed_start_in_time, leases_of_the_living_are_renewed

Check = Callable[[History], Iterator[str]]

NOT_CHECKED = {
    "H13": "order by key: there are no ordering keys yet; priority within a claim is in the tests",
    "H14": "unique keys beside the id: there are none yet",
    "H25": "same seed, same schedule: in tests/test_chaos.py",
    "H26": "nothing pages by id: in tests/test_worker.py",
    "H27": "leases by clock_timestamp(): in tests/test_claims.py",
}

_SLACK_S = 0.05
#: Seconds after which a process has begun whatever it had claimed before a restore.
_FORGOTTEN_S = 6.0
#: Seconds within which the outcome of a handler that has returned is settled.
_SETTLED_S = 1.0
_SETTLED = ("finished", "troubleshooting")
_LEASE_ENDED = "LEASE_ENDED"
_INNOCENT = ("LOST", "TIMEOUT", "CRASHED")
_ENDS: dict[str, tuple[tuple[str, str | None], ...]] = {
    **dict.fromkeys(("Noop", "Tx", "Io", "Long", "Grow", "Stuck"), (("COMPLETED", None),)),
    "Transient": (("COMPLETED", None), ("IN_TROUBLESHOOTING_QUEUE", "TRANSIENT")),
    "Permanent": (("IN_TROUBLESHOOTING_QUEUE", "PERMANENT"),),
    "Rule": (("FAILED", "RULE"),),
    **dict.fromkeys(("Big", "Keep"), (("COMPLETED", None),)),
    "OddResult": (("IN_TROUBLESHOOTING_QUEUE", "RESULT_NOT_STORABLE"),),
    "OddError": (("IN_TROUBLESHOOTING_QUEUE", "ODD"),),
    **{
        name: (("IN_TROUBLESHOOTING_QUEUE", name),)
        for name in ("SystemExit", "KeyboardInterrupt", "CancelledError")
    },
    "Undone": (("FAILED", "RULE"),),
    # Who waits for a row of a frozen one's does so in vain.
    "Cross": (
        ("COMPLETED", None),
        ("IN_TROUBLESHOOTING_QUEUE", "DeadlockDetected"),
        ("IN_TROUBLESHOOTING_QUEUE", "QueryCanceled"),
    ),
    **dict.fromkeys(("Segfault", "Exit", "Gil", "GilShort", "AbortLater"), (("COMPLETED", None),)),
}
_EFFECTIVE = ("Tx", "Cross", "Keep")
#: What a handler may meet that is not its command's fault: it is tried again, uncharged.
_OUTSIDE = ("ReadOnlySqlTransaction", "FeatureNotSupported", "TooManyConnections", "AdminShutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    about: str
    violations: Sequence[str]


def check(history: History) -> list[Finding]:
    for restore in history.restores:
        history = excused(history, restore)
    return [
        Finding(name=name, about=about, violations=list(function(history)))
        for name, (about, function) in CHECKS.items()
    ]


def excused(history: History, restore: Restore) -> History:
    """Without what a restored server cannot remember, and nothing else: whether calls that were
    answered after the copy came through, and what became of executions that went on then."""
    copied, restored = restore.copied_at, restore.restored_at
    calls = [
        replace(call, outcome="unknown")
        if call.ended >= copied and call.began <= restored
        else call
        for call in history.calls
    ]
    exits = {mark.run: mark.at for mark in history.marks if mark.what != "enter"}
    marks = [
        mark
        for mark in history.marks
        if mark.what != "enter"
        or mark.at > restored + _FORGOTTEN_S
        or exits.get(mark.run, float("inf")) < copied - _SETTLED_S
    ]
    return replace(history, calls=calls, marks=marks)


def no_loss(history: History) -> Iterator[str]:
    sent = by_call(history.rows)
    for call in history.calls:
        if call.outcome != "ok" or call.way == "cancel":
            continue
        there = {row.index for row in sent.get(call.name, ())}
        if missing := set(range(call.count)) - there:
            yield f"call {call.name} was accepted, and its commands {sorted(missing)} are nowhere"
    for row in history.rows:
        if row.type != UNHANDLED and row.table not in _SETTLED:
            yield f"{named(row)} has not ended: it is in {row.table}"


def unhandled_waits(history: History) -> Iterator[str]:
    listed = set(history.pending)
    for row in history.rows:
        if row.type != UNHANDLED:
            continue
        if (row.table, row.token) != ("ready", 0):
            yield f"{named(row)} has no handler: it is in {row.table}, with token {row.token}"
        elif row.command_id not in listed:
            yield f"{named(row)} has no handler, and is not listed as pending"


def no_invention(history: History) -> Iterator[str]:
    calls = {call.name: call for call in history.calls}
    for row in history.rows:
        if row.answers is not None:
            continue
        call = calls.get(row.call or "")
        if call is None or row.index not in range(call.count):
            yield f"{named(row)} was never sent"


def all_or_nothing(history: History) -> Iterator[str]:
    sent = by_call(history.rows)
    for call in history.calls:
        rows = sent.get(call.name, [])
        ids = {row.command_id for row in rows}
        if call.outcome == "fail" and rows:
            yield f"call {call.name} was refused, and {len(rows)} of its commands are there"
        if call.outcome == "unknown" and len(rows) not in (0, call.count):
            yield f"call {call.name} came through by {len(rows)} of {call.count}"
        if call.way != "cancel" and rows and call.ids and ids != set(call.ids):
            yield f"call {call.name} was told {sorted(call.ids)}, and has {sorted(ids)}"


def one_end(history: History) -> Iterator[str]:
    for id_, count in Counter(row.command_id for row in history.rows).items():
        if count > 1:
            yield f"command {id_} has {count} rows"
    canceled = {row.command_id for row in history.rows if row.status == "CANCELED"}
    for call in history.calls:
        if call.way == "cancel" and call.outcome == "ok":
            yield from (f"{id_} was canceled, and is not" for id_ in set(call.ids) - canceled)
    asked = {id_ for call in history.calls if call.way == "cancel" for id_ in call.ids}
    yield from (f"{id_} is canceled, and nobody asked" for id_ in canceled - asked)
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
    """Or by what the storm did to it, which must have been recorded."""
    told: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        told[event.command_id].append(event)
    # Whoever takes over a claim whose lease has ended says so nowhere else.
    takeovers = Counter(
        move.command_id
        for move in history.moves
        if move.what == "claim" and move.claimer_before is not None
    )
    for row in history.rows:
        if row.answers is not None or row.table not in _SETTLED or row.status == "CANCELED":
            continue
        if row.type == UNHANDLED:
            continue
        if (row.status, row.code) in _ENDS[row.type]:
            continue
        if row.status != "IN_TROUBLESHOOTING_QUEUE" or row.code not in _INNOCENT:
            if not (row.code == "EXHAUSTED" and len(told[row.command_id]) > 1):
                yield f"{named(row)} ended as {row.status} {row.code}"
        elif len(told[row.command_id]) + takeovers[row.command_id] < 2 and row.code != "CRASHED":
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
    """Or a steward that hands back, or whoever cancels. What was accepted is its claimer's."""
    canceled = {row.command_id for row in history.rows if row.status == "CANCELED"}
    for move in history.moves:
        if move.what not in ("ready-", "release"):
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
    for move in history.moves:
        held = move.what == "claim" and move.claimer_before is not None
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
    for row in history.rows:
        wanted = int(row.type in _EFFECTIVE and row.status == "COMPLETED")
        if effects.pop(row.command_id, 0) != wanted:
            found = sum(effect.command_id == row.command_id for effect in own)
            yield f"{named(row)} is {row.status} and has {found} effects"
    yield from (f"an effect of {id_}, which is nowhere" for id_ in effects)


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
    for row in history.rows:
        if row.answers is None and row.status == "COMPLETED" and row.run not in returned:
            yield f"{named(row)} was completed by {row.run}, which did not return"
    runs = Counter((mark.command_id, mark.pid) for mark in entries(history.marks))
    ends = _ends_of_executions(history)
    for (id_, pid), count in runs.items():
        if count > ends[id_, pid]:
            yield f"command {id_}: {pid} ran it {count} times, and {ends[id_, pid]} have ended"


def ended_leases_are_told(history: History) -> Iterator[str]:
    """A claim of a row that another claim still had leaves an event of that one's token."""
    events = Counter(
        (event.command_id, event.token) for event in history.events if event.code == _LEASE_ENDED
    )
    for move in history.moves:
        if move.what == "claim" and move.claimer_before is not None:
            key = move.command_id, move.token_before
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
            if next_.attempts - one.attempts not in (0, 1) or (
                next_.what in ("claim", "release") and next_.attempts != one.attempts
            ):
                yield f"command {id_}: {next_.what}, attempts {one.attempts} -> {next_.attempts}"


def not_before_its_time(history: History) -> Iterator[str]:
    limits = history.limits
    began = {call.name: call.began for call in history.calls}
    asked = {row.command_id: row for row in history.rows if row.delay}
    marked: dict[str, list[float]] = defaultdict(list)
    for mark in history.marks:
        marked[mark.command_id].append(mark.at)
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
                # The statement that settled it may have taken long on a busy machine.
                ended = max((at for at in marked[id_] if at <= next_.at), default=next_.at)
                lies = (next_.due_at or 0.0) - ended
                if lies < backoff * (1 - limits.jitter) - _SLACK_S:
                    yield f"command {id_}: again {lies:.3f} s after attempt {next_.attempts}"


CHECKS: dict[str, tuple[str, Check]] = {
    "H1": ("no loss: what was accepted has ended", no_loss),
    "H1b": ("commands without a handler wait, untouched", unhandled_waits),
    "H2": ("no invention: what is there was sent", no_invention),
    "H3": ("unknown sends came through entirely or not at all", all_or_nothing),
    "H4": ("exactly one end, and nothing after it", one_end),
    "H4b": ("the end is the handler's, or of recorded losses", ends_as_its_handler_says),
    "H5": ("tokens count 1, 2, 3 ..., each of one claimer", tokens_count_up),
    "H6": ("only the holder of the latest claim settles", only_the_claimer_ends_a_claim),
    "H7": ("claims of a command never overlap", claims_do_not_overlap),
    "H8": ("each execution has a claim of its own", each_execution_has_a_claim),
    "H9": ("effects: once if completed, else never", effects_are_there_once),
    "H9b": ("effects are of the settled run, in its transaction", effects_are_of_what_was_settled),
    "H10": ("executions are explained by what is recorded", runs_are_explained),
    "H10b": ("each claim after an ended lease has its event", ended_leases_are_told),
    "H10c": ("leases of living processes are renewed", leases_of_the_living_are_renewed),
    "H11": ("attempts are bounded, and only outcomes charge", attempts_are_bounded),
    "H12": ("nothing runs before it is due", not_before_its_time),
    "H12b": ("what is delayed starts in time", delayed_start_in_time),
    "H15": ("in each snapshot: sent = sum over all states", counts_agree),
    "H16": ("counters never fall while a supervisor lives", counters_never_fall),
    "H17": ("restarts and ends of processes have causes", restarts_have_causes),
    "H18": ("no more processes than wanted, and one", fleets_are_bounded),
    "H19": ("no more sessions than the budget", connections_are_bounded),
    "H20": ("none claims after its stop", none_claims_after_its_stop),
    "H21": ("everything works again in time, and is drained", everything_works_again),
    "H22": ("no PANIC, deadlock or timeout of the server's own", the_server_is_content),
    "H23": ("the password is nowhere to be read", no_secret_is_told),
    "all": ("every source of this was heard", every_source_was_heard),
    "H24": ("no zombie and no orphan for more than 2 s", no_process_is_left),
}


def _is_of(history: History, claimer: int | None, pid: int | None) -> bool:
    return pid is not None and pid_of(history.workers.get(claimer or 0, "")) == pid


def outcomes(calls: Iterable[Call]) -> Counter[str]:
    return Counter(call.outcome for call in calls)
