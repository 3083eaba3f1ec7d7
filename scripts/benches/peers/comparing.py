"""The same work by cmdbus and by each of the others that is installed, in alternation."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from statistics import median

from benches.comparison import Comparison, Found, Place
from benches.peers.ours import Cmdbus
from benches.peers.peer import Payload, Peer
from benches.peers.times import SENT, SLEEP, count_times, read_times

#: Class by module; each module needs its system to be installed.
PEERS = {"procrastinate": "Procrastinate", "pgqueuer": "PgQueuer", "dramatiq": "Dramatiq"}
MEASURES = ("drain", "pickup", "io")

#: Of --commands.
_IO_PART, _PICKUP_PART = 40, 400
_IO_S, _IO_PROCESSES, _IO_THREADS = 0.02, 2, 16
_PROCESSES, _THREADS = 2, 8
#: Commands that workers run one by one before they are measured.
_WARM = 20
#: Seconds between the end of a handler and the next send.
_REST_S = 0.02
_PATIENCE_S, _LOOK_S, _SHORT_S = 120.0, 0.02, 0.001


def peers(slot: Place) -> Found:
    """The same commands by cmdbus and by what else a user would install, each configured at its
    best: no-op handlers in 2 processes that find a full queue, from the first start to the last
    end; p50 from before a send to the handler's first line; and handlers that sleep 20 ms, 2 x 16
    at once."""
    found: dict[str, Comparison] = {}
    for module, name in PEERS.items():
        try:
            peer: Callable[[str], Peer] = getattr(import_module(f"benches.peers.{module}"), name)
            with closing(peer(slot.dsn)) as other, closing(Cmdbus(slot.dsn)) as cmdbus:
                for measure, compare in (("drain", _drain), ("pickup", _pickup), ("io", _io)):
                    found[f"{measure}-{module}"] = compare(slot, other, cmdbus)
        except ModuleNotFoundError as error:
            print(f"{module}: {error}", file=sys.stderr)
    return found


def _drain(slot: Place, other: Peer, cmdbus: Peer) -> Comparison:
    def rate(peer: Peer) -> float:
        count = int(slot.sizes.commands * peer.share)
        return _rate(peer, count, 0.0, _PROCESSES, _THREADS)

    pairs = slot.rounds(partial(rate, other), partial(rate, cmdbus))
    return _compared(pairs, commands=slot.sizes.commands, others_share=other.share)


def _io(slot: Place, other: Peer, cmdbus: Peer) -> Comparison:
    count = max(_IO_PROCESSES * _IO_THREADS, slot.sizes.commands // _IO_PART)

    def rate(peer: Peer) -> float:
        return _rate(peer, count, _IO_S, _IO_PROCESSES, _IO_THREADS)

    pairs = slot.rounds(partial(rate, other), partial(rate, cmdbus))
    return _compared(pairs, commands=count, handler_s=_IO_S)


def _pickup(slot: Place, other: Peer, cmdbus: Peer) -> Comparison:
    """Of workers that wait, which run a few commands before."""
    count = max(slot.sizes.rounds, slot.sizes.commands // _PICKUP_PART)

    def milliseconds(peer: Peer) -> float:
        with _times() as directory:
            with peer.workers(directory, _PROCESSES, _THREADS, quick=False):
                for number in range(_WARM + count):
                    _send(peer, 1, 0.0)
                    _await(directory, number + 1, _SHORT_S)
                    time.sleep(_REST_S)
            times = sorted(read_times(directory))[_WARM:]
        return 1000 * median(each.began - each.sent for each in times)

    pairs = slot.rounds(partial(milliseconds, other), partial(milliseconds, cmdbus))
    return _compared(pairs, less=True, commands=count)


def _rate(peer: Peer, count: int, sleep_s: float, processes: int, threads: int) -> float:
    """From the first start to the last end, by workers that find all commands."""
    _send(peer, count, sleep_s)
    with _times() as directory:
        with peer.workers(directory, processes, threads, quick=not sleep_s):
            _await(directory, count, _LOOK_S)
        times = list(read_times(directory))
    return count / (max(each.ended for each in times) - min(each.began for each in times))


@contextmanager
def _times() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="cmdbus-bench-times-") as directory:
        yield directory


def _send(peer: Peer, count: int, sleep_s: float) -> None:
    payload: Payload = {SLEEP: sleep_s, SENT: time.time()}
    peer.send([payload] * count)


def _await(directory: str, count: int, look_s: float) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while count_times(directory) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count:,} commands were not run within {_PATIENCE_S:.0f} s")
        time.sleep(look_s)


def _compared(
    pairs: Sequence[tuple[float, ...]], *, less: bool = False, **configuration: object
) -> Comparison:
    return Comparison(
        pairs=[(one, two) for one, two in pairs],
        less=less,
        configuration={**configuration, "processes": _PROCESSES, "threads": _THREADS},
    )
