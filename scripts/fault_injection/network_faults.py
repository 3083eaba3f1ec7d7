"""Faults of the network between instances and their server."""

import time

from lab.instances import Instance

from cmdbus.board.health import Health
from cmdbus.board.records import Role
from fault_injection.handlers import DOMAINS
from fault_injection.kinds import Fault, Hurts, Kind, Needs, PromiseError
from fault_injection.rig import Rig, within

_SLOW_S = 0.03
#: Seconds within which a partition is noticed.
_NOTICED_S = 10.0
_CLAIMED = "SELECT count(*) FROM cmdbus.ready WHERE claimer = ANY (%s) AND domain = ANY (%s)"


#: For each fault: bytes of the request whose reply is lost.
_REQUESTS = {
    "lose-step": b'".complete(',
    "lose-settle": b"cmdbus.transaction', true)",
    "lose-commit": b"COMMIT;\nCLOSE",
    "lose-send": b'".enqueue(',
    "lose-move": b'".move_',
}
#: Replies that one fault loses, and seconds between two of them.
_LOST_REPLIES, _NEXT_REPLY_S = 5, 0.35


@Kind("proxy-silent", "the network carries nothing", lasts=(1.0, 8.0), hurts=Hurts.BEHIND_PROXY)
def be_silent(rig: Rig, fault: Fault) -> None:
    with rig.proxy.silent():
        time.sleep(fault.lasts)


@Kind(
    "proxy-slow",
    "the network is late by 30 ms",
    weight=2,
    lasts=(1.0, 5.0),
    hurts=Hurts.BEHIND_PROXY,
)
def be_slow(rig: Rig, fault: Fault) -> None:
    with rig.proxy.slow(_SLOW_S):
        time.sleep(fault.lasts)


@Kind("proxy-cut", "all connections are cut", weight=2, hurts=Hurts.BEHIND_PROXY)
def cut(rig: Rig, fault: Fault) -> None:
    rig.proxy.cut()


@Kind("proxy-trickle", "the network carries 10 bytes/s", lasts=(1.0, 6.0), hurts=Hurts.BEHIND_PROXY)
def trickle(rig: Rig, fault: Fault) -> None:
    with rig.proxy.trickling():
        time.sleep(fault.lasts)


def _lose_replies(rig: Rig, fault: Fault) -> None:
    """The server carries out the requests, and their clients do not learn of it."""
    for _ in range(_LOST_REPLIES):
        rig.proxy.lose_replies(fault.kind, _REQUESTS[fault.kind])
        time.sleep(_NEXT_REPLY_S)


for _name, _about in (
    ("lose-step", "the reply to a settle-and-claim is lost"),
    ("lose-settle", "the reply to a settlement in a transaction is lost"),
    ("lose-commit", "the reply to a handler's COMMIT is lost"),
    ("lose-send", "the reply to a send is lost"),
    ("lose-move", "the reply to a move of a bridge is lost"),
):
    Kind(_name, _about, hurts=Hurts.BEHIND_PROXY)(_lose_replies)


@Kind(
    "link-down",
    "the link of an instance's host is down (--hosts)",
    lasts=(10.5, 14.0),
    slow_by=10,
    needs=Needs.HOSTS,
)
def pull_plug(rig: Rig, fault: Fault) -> None:
    host = rig.hosts[fault.instance]
    instance = rig.instances[fault.instance]
    with rig.undoing(host.pull_plug, host.plug_in):
        ends_at = time.monotonic() + fault.lasts
        noticed = within(_NOTICED_S, lambda: _is_cut_off(instance))
        claimers = _incarnations(instance)
        left = fault.lasts - 0.1 - (noticed or _NOTICED_S)
        taken = within(left, lambda: not _has_claims(rig, claimers))
        time.sleep(max(0.0, ends_at - time.monotonic()))
    if noticed is None:
        raise PromiseError(f"it was not noticed within {_NOTICED_S:g} s")
    if taken is None:
        raise PromiseError(f"no other host had its commands after {fault.lasts:g} s")


def _has_claims(rig: Rig, claimers: list[int]) -> bool:
    with rig.connect() as connection:
        rows = connection.execute(_CLAIMED, (claimers, [*DOMAINS])).fetchall()
    return bool(rows[0][0])


def _is_cut_off(instance: Instance) -> bool:
    """Its steward knows, and so do all workers but the parked ones."""
    view = instance.look_alone()
    if view is None:
        return False
    stewards, workers = view.with_role(Role.STEWARD), view.with_role(Role.WORKER)
    return any(steward.levels.database_away for steward in stewards) and all(
        worker.parked or worker.health is Health.DATABASE_AWAY for worker in workers
    )


def _incarnations(instance: Instance) -> list[int]:
    view = instance.look_alone()
    seats = view.seats if view is not None else []
    return [seat.incarnation for seat in seats if seat.incarnation is not None]
