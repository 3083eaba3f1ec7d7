"""What running commands costs beside the bare statements."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from statistics import median

from benches import bare
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.fleet import TYPE, Fleet, fleet, nothing
from benches.yard import BARE, Drained, Yard, commands, rates_and_cpu, yard
from cmdbus.producer.requests import SendRequest

#: Of --commands.
_TX_PART = 10
_BLOAT_TIMES = 3.75
_PROCESSES, _THREADS = 2, 8


def drain(place: Place) -> Found:
    """Workers with a handler that does nothing, 2 x 8, which have waited with an empty queue,
    against two bare processes that settle 100 and claim 100 in one statement. CPU is that of all
    processes and backends for a command, between 8 % and 92 % of the drain: the bare loop's over
    ours."""
    ours, theirs = _requests(place)
    with (
        yard(place) as here,
        crew(_PROCESSES, bare.loop, place.dsn) as loops,
        _fleet(place) as running,
    ):
        pairs = place.alternate(
            lambda seconds: here.drain_bare(loops, _part(place, theirs, seconds)),
            lambda seconds: here.drain(running, _part(place, ours, seconds)),
        )
    return rates_and_cpu("drain", pairs, **_configuration(len(ours)))


def drain_full(place: Place) -> Found:
    """The same, with workers that are started when all commands wait; counted from the first
    claim."""
    ours, theirs = _requests(place)
    with yard(place) as here, crew(_PROCESSES, bare.loop, place.dsn) as loops:
        pairs = place.alternate(
            lambda seconds: here.drain_bare(loops, _part(place, theirs, seconds)),
            lambda seconds: _drain_full(here, _part(place, ours, seconds)),
        )
    return rates_and_cpu("drain-full", pairs, **_configuration(len(ours)))


def threads(place: Place) -> Found:
    """The drain with 2 x 8, against the same with 2 x 1."""
    requests = commands(place.sizes.commands)
    with yard(place) as here:
        pairs = place.rounds(
            partial(_drain_by, here, requests, threads=1),
            partial(_drain_by, here, requests, threads=_THREADS),
        )
    found = rates_and_cpu("threads", [(one, two) for one, two in pairs], commands=len(requests))
    return {"threads": found["threads"]}


def tx(place: Place) -> Found:
    """Workers with a handler that inserts a row through context.connection, against bare
    loops of the same statements with as many connections, each claiming one at a time."""
    with place.connect() as connection:
        connection.execute(bare.EFFECT)
    ours, theirs = _requests(place, max(1, place.sizes.commands // _TX_PART))
    with (
        yard(place) as here,
        crew(_PROCESSES, bare.singly, place.dsn, _THREADS) as loops,
        fleet(place.dsn, {TYPE: bare.insert}, processes=_PROCESSES, threads=_THREADS) as running,
    ):
        pairs = place.alternate(
            lambda seconds: here.drain_bare(loops, _part(place, theirs, seconds)).rate,
            lambda seconds: here.drain(running, _part(place, ours, seconds)).rate,
        )
    return {"tx": Comparison(pairs=pairs, configuration=_configuration(len(ours)))}


def bloat(place: Place) -> Found:
    """The drain while another session holds a snapshot from before the first command,
    against the same drain without."""
    requests = commands(int(place.sizes.commands * _BLOAT_TIMES))

    def held(here: Yard, running: Fleet, seconds: float) -> Drained:
        with place.connect() as holder:
            here.clear()
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            return here.drain_uncleared(running, _part(place, requests, seconds))

    with yard(place) as here, _fleet(place) as running:
        pairs = place.alternate(
            lambda seconds: here.drain(running, _part(place, requests, seconds)),
            lambda seconds: held(here, running, seconds),
        )
    without, snapshot = zip(*pairs, strict=True)
    configuration = {
        **_configuration(len(requests)),
        "last_third_to_first": round(median(each.flatness for each in snapshot), 4),
        "without_snapshot": round(median(each.flatness for each in without), 4),
    }
    rates = [(one.rate, two.rate) for one, two in pairs]
    return {"bloat": Comparison(pairs=rates, configuration=configuration)}


def _fleet(place: Place) -> AbstractContextManager[Fleet]:
    return fleet(place.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS)


def _drain_by(here: Yard, requests: Sequence[SendRequest], threads: int) -> Drained:
    handlers = {TYPE: nothing}
    with fleet(here.place.dsn, handlers, processes=_PROCESSES, threads=threads) as running:
        return here.drain_warm(running, requests)


def _drain_full(here: Yard, requests: Sequence[SendRequest]) -> Drained:
    with fleet(
        here.place.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS, started=False
    ) as waiting:
        return here.drain_full(waiting, requests)


def _requests(
    place: Place, count: int | None = None
) -> tuple[Sequence[SendRequest], Sequence[SendRequest]]:
    """For the fleet and for the bare loops."""
    count = place.sizes.commands if count is None else count
    return commands(count), commands(count, domain=BARE)


def _part(place: Place, requests: Sequence[SendRequest], seconds: float) -> Sequence[SendRequest]:
    """All of them in a round of full length."""
    return requests[: max(1, int(len(requests) * seconds / place.sizes.seconds))]


def _configuration(count: int) -> dict[str, object]:
    return {
        "commands": count,
        "payload_bytes": 100,
        "processes": _PROCESSES,
        "threads": _THREADS,
    }
