"""What running commands costs compared with the bare statements."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from statistics import median

from benches import bare
from benches.comparison import Comparison, Found, Place
from benches.crews import crew
from benches.fleet import TYPE, Fleet, fleet, nothing
from benches.yard import BARE, Drained, Yard, commands, part, rates_and_cpu, yard
from cmdbus.producer.requests import SendRequest

#: Of --commands.
_TX_PART = 10
_BLOAT_TIMES = 3.75
_PROCESSES, _THREADS = 2, 8


def drain(slot: Place) -> Found:
    """Workers with a handler that does nothing, 2 x 8, which have waited with an empty queue,
    against two bare processes that settle 100 and claim 100 in one statement. CPU is that of all
    processes and backends for a command, between 8 % and 92 % of the drain: the bare loop's over
    the fleet's."""
    requests, bare_requests = _requests(slot)
    with (
        yard(slot) as here,
        crew(_PROCESSES, bare.loop, slot.dsn) as loops,
        _fleet(slot) as running,
    ):
        pairs = slot.alternate(
            lambda seconds: here.drain_bare(loops, part(slot, bare_requests, seconds)),
            lambda seconds: here.drain(running, part(slot, requests, seconds)),
        )
    return rates_and_cpu("drain", pairs, **_configuration(len(requests)))


def drain_full(slot: Place) -> Found:
    """The same, with workers that are started when all commands wait; counted from the first
    claim."""
    requests, bare_requests = _requests(slot)
    with yard(slot) as here, crew(_PROCESSES, bare.loop, slot.dsn) as loops:
        pairs = slot.alternate(
            lambda seconds: here.drain_bare(loops, part(slot, bare_requests, seconds)),
            lambda seconds: _drain_full(here, part(slot, requests, seconds)),
        )
    return rates_and_cpu("drain-full", pairs, **_configuration(len(requests)))


def threads(slot: Place) -> Found:
    """The drain with 2 x 8, against the same with 2 x 1."""
    requests = commands(slot.sizes.commands)
    with yard(slot) as here:
        pairs = slot.rounds(
            partial(_drain_by, here, requests, threads=1),
            partial(_drain_by, here, requests, threads=_THREADS),
        )
    found = rates_and_cpu("threads", [(one, two) for one, two in pairs], commands=len(requests))
    return {"threads": found["threads"]}


def tx(slot: Place) -> Found:
    """Workers with a handler that inserts a row through context.connection, against bare
    loops of the same statements with as many connections, each claiming one at a time."""
    with slot.connect() as connection:
        connection.execute(bare.EFFECT)
    requests, bare_requests = _requests(slot, max(1, slot.sizes.commands // _TX_PART))
    with (
        yard(slot) as here,
        crew(_PROCESSES, bare.singly, slot.dsn, _THREADS) as loops,
        fleet(slot.dsn, {TYPE: bare.insert}, processes=_PROCESSES, threads=_THREADS) as running,
    ):
        pairs = slot.alternate(
            lambda seconds: here.drain_bare(loops, part(slot, bare_requests, seconds)).rate,
            lambda seconds: here.drain(running, part(slot, requests, seconds)).rate,
        )
    return {"tx": Comparison(pairs=pairs, configuration=_configuration(len(requests)))}


def batch(slot: Place) -> Found:
    """The drain of commands that are one batch, against the same drain without."""
    requests = commands(slot.sizes.commands)
    with yard(slot) as here, _fleet(slot) as running:
        pairs = slot.alternate(
            lambda seconds: here.drain(running, part(slot, requests, seconds)).rate,
            lambda seconds: here.drain_batch(running, part(slot, requests, seconds)).rate,
        )
    return {"batch": Comparison(pairs=pairs, configuration=_configuration(len(requests)))}


def bloat(slot: Place) -> Found:
    """The drain while another session holds a snapshot from before the first command,
    against the same drain without."""
    return {"bloat": _with_snapshot(slot, Yard.drain)}


def bloat_batch(slot: Place) -> Found:
    """The same with commands that are one batch, in both drains."""
    return {"bloat-batch": _with_snapshot(slot, Yard.drain_batch)}


def _with_snapshot(
    slot: Place, drain: Callable[[Yard, Fleet, Sequence[SendRequest]], Drained]
) -> Comparison:
    requests = commands(int(slot.sizes.commands * _BLOAT_TIMES))

    def held(here: Yard, running: Fleet, seconds: float) -> Drained:
        with slot.connect() as holder:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT 1")
            return drain(here, running, part(slot, requests, seconds))

    with yard(slot) as here, _fleet(slot) as running:
        pairs = slot.alternate(
            lambda seconds: drain(here, running, part(slot, requests, seconds)),
            lambda seconds: held(here, running, seconds),
        )
    without, snapshot = zip(*pairs, strict=True)
    configuration = {
        **_configuration(len(requests)),
        "last_third_to_first": round(median(each.flatness for each in snapshot), 4),
        "without_snapshot": round(median(each.flatness for each in without), 4),
    }
    rates = [(one.rate, two.rate) for one, two in pairs]
    return Comparison(pairs=rates, configuration=configuration)


def _fleet(slot: Place) -> AbstractContextManager[Fleet]:
    return fleet(slot.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS)


def _drain_by(here: Yard, requests: Sequence[SendRequest], threads: int) -> Drained:
    handlers = {TYPE: nothing}
    with fleet(here.slot.dsn, handlers, processes=_PROCESSES, threads=threads) as running:
        return here.drain_warm(running, requests)


def _drain_full(here: Yard, requests: Sequence[SendRequest]) -> Drained:
    with fleet(
        here.slot.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS, started=False
    ) as waiting:
        return here.drain_full(waiting, requests)


def _requests(
    slot: Place, count: int | None = None
) -> tuple[Sequence[SendRequest], Sequence[SendRequest]]:
    """For the fleet and for the bare loops."""
    count = slot.sizes.commands if count is None else count
    return commands(count), commands(count, domain=BARE)


def _configuration(count: int) -> dict[str, object]:
    return {
        "commands": count,
        "payload_bytes": 100,
        "processes": _PROCESSES,
        "threads": _THREADS,
    }
