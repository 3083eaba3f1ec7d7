"""What the checks of limits, unique keys and expiry find: by their names, changes that make a good
history wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chaos_history import CALM, Change, both, change, put
from fault_injection.history import Call, LimitChange, Mark, Move, Row


@dataclass(frozen=True, kw_only=True)
class One:
    """A command that worker 2 completes."""

    name: str
    type: str = "Three"
    key: str | None = "a"
    #: When it was sent, claimed and settled; not at all, if it has no time.
    sent: float
    claimed: float | None = None
    ended: float | None = None
    row: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)


_LIMITS = [
    LimitChange(at=1.0, name="lanes Three", concurrency=3),
    LimitChange(at=1.0, name="lanes One", concurrency=9),
    LimitChange(at=1.0, name="shared", concurrency=4),
    LimitChange(at=1.0, name="local", concurrency=2),
    LimitChange(at=1.0, name="wide", starts_per_second=40.0, burst=8),
    LimitChange(at=1.0, name="lanes Rated", starts_per_second=20.0, burst=5),
    LimitChange(at=1.0, name="lanes Changed", concurrency=3),
    LimitChange(at=205.0, name="lanes Changed", concurrency=1),
    LimitChange(at=195.0, name="storm Noop", concurrency=1),
    LimitChange(at=205.0, name="storm Tx", concurrency=1),
]


def having(*commands: One, marks: Sequence[Mark] = (), calls: Sequence[Call] = ()) -> Change:
    """A history that has these commands, too."""

    def made(history: Any) -> Any:
        moves = [move for one in commands for move in _moves(one)]
        moves.sort(key=lambda move: move.at)
        numbered = [replace(move, number=1000 + n) for n, move in enumerate(moves)]
        return replace(
            history,
            rows=[*history.rows, *map(_row, commands)],
            moves=[*history.moves, *numbered],
            calls=[*history.calls, *map(_call, commands), *calls],
            marks=[*history.marks, *marks, *(_returned(one) for one in commands)],
            limit_changes=_LIMITS,
        )

    return made


def _row(one: One) -> Row:
    values: dict[str, Any] = {
        **dict(command_id=one.name, table="finished", status="COMPLETED", type="Noop"),
        **dict(domain="lanes", call=one.name, index=0, attempts=1, run=one.name, claimer=2),
        **dict(limited=f"lanes {one.type}", key=one.key),
    }
    return Row(**{**values, **one.row})


def _call(one: One) -> Call:
    values: dict[str, Any] = dict(name=one.name, way="lane", count=1, outcome="ok")
    values |= dict(ids=[one.name], began=one.sent - 0.01, ended=one.sent + 0.01)
    return Call(**{**values, **one.call})


def _moves(one: One) -> list[Move]:
    def move(at: float, what: str, **more: Any) -> Move:
        values: dict[str, Any] = dict(number=0, began=at, at=at, xid=int(at * 1000), token=0)
        return Move(**{**values, "session": "", "what": what, "command_id": one.name, **more})

    moves = [move(one.sent, "limited+")]
    if one.claimed is not None:
        claim: dict[str, Any] = {"token": 1, "token_before": 0, "claimer": 2}
        moves.append(move(one.claimed, "claim", claimed_at=one.claimed, **claim))
        if one.ended is not None:
            moves.append(move(one.ended, "ready-", token=1, claimer_before=2))
    if one.ended is not None:
        moves.append(move(one.ended, "finished+", token=1))
    return moves


def _returned(one: One) -> Mark:
    return Mark(
        at=one.ended or 0.0, what="returned", run=one.name, pid=20, command_id=one.name, attempt=1
    )


def entered(name: str, at: float) -> Mark:
    return Mark(at=at, what="enter", run=name, pid=20, command_id=name, attempt=1)


def together(count: int, **more: Any) -> list[One]:
    return [
        One(name=f"n{n}", sent=200.0, claimed=210.0 + n / 100, ended=220.0, **more)
        for n in range(count)
    ]


def unique(name: str, *, key: str = "u", until: str = "finished", **more: Any) -> One:
    row = {"unique_key": key, "unique_until": until}
    return One(name=name, row=row, **more)


def refused(held_by: str, *, began: float, key: str = "lanes u") -> Call:
    values: dict[str, Any] = {"ended": began + 0.01, "unique": key, "held_by": held_by}
    return Call(name="refused", way="unique", count=1, outcome="fail", began=began, **values)


def expired(at: float | None, *, claimed: float | None = None) -> One:
    row: dict[str, Any] = {"status": "CANCELED", "code": "EXPIRED", "expires_at": at}
    return One(name="late", sent=200.0, claimed=claimed, ended=220.0, row=row)


def waited_in_its_lane(**more: Any) -> Change:
    """The Noop is moved to where it waits at a limit, and claimed there; `more` is of the row that
    it had before."""

    def made(history: Any) -> Any:
        moves = [*history.moves]
        place = next(n for n, move in enumerate(moves) if move.what == "claim" and n > 6)
        ready = replace(moves[place - 1], at=104.15, xid=77)
        out = replace(ready, what="ready-", **more)
        moved = [out, replace(ready, what="limited+"), replace(ready, what="limited-"), ready]
        moves[place:place] = moved
        return replace(history, moves=[replace(m, number=n) for n, m in enumerate(moves)])

    return made


def claimed_again(at: float) -> Change:
    """The last move, a claim, is taken back, and follows once more."""

    def made(history: Any) -> Any:
        claim = history.moves[-1]
        moves = [replace(claim, at=claim.at + 0.01, what="release"), replace(claim, at=at)]
        return replace(history, moves=[*history.moves, *moves])

    return made


FIRST = One(name="before", type="Blocks", sent=200.0, claimed=210.0, ended=220.0)
SECOND = replace(FIRST, name="after", sent=201.0, claimed=221.0, ended=222.0)
TOO_EARLY = replace(SECOND, claimed=219.0)
#: The second one stood before the first one in the same call.
SIBLINGS = (
    replace(FIRST, row={"call": "after", "index": 1}, sent=201.0),
    replace(SECOND, row={"call": "after", "index": 0}),
)
HOLDER = unique("holder", sent=200.0, claimed=210.0, ended=220.0)
REPLACED = replace(
    HOLDER, claimed=None, row={**HOLDER.row, "status": "CANCELED", "code": "REPLACED"}
)
BRIEF = unique("brief", until="started", sent=200.0, claimed=210.0)
NEXT = unique("next", sent=220.0, claimed=221.0, ended=222.0)
#: What had the key is nowhere.
FORGOTTEN = having(calls=[refused("nobody", began=210.0)])

#: As BROKEN.
BROKEN_LIMITS: dict[str, dict[str, Change]] = {
    "claims-do-not-overlap": {
        "it is moved into its lane before its lease ended": waited_in_its_lane(
            claimer_before=1, lease_before=104.5
        )
    },
    "ended-leases-are-recorded": {
        "it is moved into its lane without an event": waited_in_its_lane(
            claimer_before=1, lease_before=104.0
        )
    },
    "places-are-never-exceeded": {
        "one more than its limit": having(*together(4)),
        "more than two types share": having(*together(5, type="One")),
        "more than a node may run": having(*together(3, type="Local")),
        "more than an operator has set": having(*together(4, type="Changed")),
        "more of a type that had no limit": having(*together(2, row={"limited": "storm Noop"})),
    },
    "order-is-kept": {
        "the next one begins too early": having(FIRST, TOO_EARLY),
        "the first one never ends": having(replace(FIRST, ended=None), SECOND),
        "the second one of a call begins first": having(*SIBLINGS),
    },
    "rates-are-kept": {
        "more than a burst": having(*together(7, type="Rated")),
        "more than a burst of a domain": having(*together(14, row={"limited": "lanes.wide Wide"})),
    },
    "no-place-is-lost": {"a turn is left": put(turns=["lanes Three a"])},
    "what-expires-never-begins": {
        "it does not expire at all": having(expired(None)),
        "it was claimed too late": having(
            replace(FIRST, row={"expires_at": 209.0}),
        ),
        "it has begun": having(expired(219.0, claimed=210.0), marks=[entered("late", 211.0)]),
        "it is canceled too early": having(expired(221.0)),
        "it is canceled too late": having(expired(210.0)),
    },
    "unique-keys-have-one-holder": {
        "two hold it": having(HOLDER, replace(NEXT, sent=219.0)),
        "it waits again with it": having(replace(BRIEF, ended=220.0), replace(NEXT, sent=209.0)),
        "it holds it for 15 s": having(
            unique("long", until="15", sent=200.0, claimed=201.0, ended=202.0),
            replace(NEXT, sent=214.0),
        ),
    },
    "only-held-keys-are-refused": {
        "the holder is nowhere": FORGOTTEN,
        "it holds another one": having(HOLDER, calls=[refused("holder", began=210.0, key="x")]),
        "it has given it up": having(HOLDER, calls=[refused("holder", began=231.0)]),
        "it was not there yet": having(HOLDER, calls=[refused("holder", began=190.0)]),
        "it has started": having(BRIEF, calls=[refused("brief", began=231.0)]),
    },
    "only-what-waits-is-replaced": {
        "by nothing": having(REPLACED),
        "it has begun": having(REPLACED, NEXT, marks=[entered("holder", 211.0)]),
    },
}
#: Changes that keep these invariants, by the check that finds nothing.
KEPT: Sequence[tuple[str, Change]] = (
    ("only-the-claimer-ends-a-claim", waited_in_its_lane()),
    ("delayed-start-in-time", both(CALM, change("moves", 10, at=114.5), waited_in_its_lane())),
    ("one-end", change("rows", 0, status="CANCELED", code="EXPIRED")),
    ("one-end", change("rows", 0, status="CANCELED", code="REPLACED")),
    ("places-are-never-exceeded", having(*together(3))),
    ("places-are-never-exceeded", having(*together(4, type="One"))),
    ("places-are-never-exceeded", having(*together(3, type="Changed"))),
    ("places-are-never-exceeded", having(*together(2, type="Local"))),
    ("rates-are-kept", having(*together(8, row={"limited": "lanes.wide Wide"}))),
    ("places-are-never-exceeded", having(*together(4, row={"limited": "storm Tx"}))),
    ("order-is-kept", having(FIRST, SECOND)),
    # Sent at the same time, canceled before it began, and of another key.
    ("order-is-kept", having(FIRST, replace(TOO_EARLY, sent=200.01))),
    ("order-is-kept", having(replace(FIRST, claimed=None), TOO_EARLY)),
    ("order-is-kept", having(FIRST, replace(TOO_EARLY, key="b"))),
    ("rates-are-kept", having(*together(5, type="Rated"))),
    ("what-expires-never-begins", having(expired(219.0))),
    ("unique-keys-have-one-holder", having(HOLDER, replace(NEXT, sent=220.01))),
    ("unique-keys-have-one-holder", having(HOLDER, unique("other", key="v", sent=201.0))),
    ("only-held-keys-are-refused", having(HOLDER, calls=[refused("holder", began=210.0)])),
    (
        "only-held-keys-are-refused",
        both(having(BRIEF, calls=[refused("brief", began=231.0)]), claimed_again(240.0)),
    ),
    ("only-what-waits-is-replaced", having(REPLACED, NEXT)),
)
