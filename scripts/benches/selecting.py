"""What commands that no node can run cost the others: a type whose tag no fleet has."""

import time
from statistics import median

import psycopg

from benches.comparison import Comparison, Found, Place
from benches.fleet import DOMAIN, TYPE, fleet, nothing
from benches.waiting import idle_windows
from benches.yard import Yard, commands, yard
from cmdbus.database import schema
from cmdbus.producer.requests import SendRequest
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import ClaimRequest, ClaimResult, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.floors import Floors
from cmdbus.worker.claims.outcomes import completed

TAGGED = "Tagged"
#: Of --commands.
_WAITING_TIMES, _OTHERS_PART = 2.5, 4
_CLAIMED_AT_ONCE = 8

_VACUUM = "VACUUM cmdbus.ready"


def registry() -> HandlerRegistry:
    """The app of the fleet."""
    made = HandlerRegistry()
    made.register(DOMAIN, TYPE, nothing)
    made.register(DOMAIN, TAGGED, nothing, tags={"gpu"})
    return made


class Leader:
    """Settles and claims as a worker's leader does, without running anything."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self._statements = ClaimStatements(schema.DEFAULT, Timeouts().lease)
        self._statements.register(connection, "bench")
        self._floors = Floors()
        self._done: list[Finished] = []

    def drain_ms(self) -> list[float]:
        """The milliseconds of each claim, until there is nothing more to claim."""
        times: list[float] = []
        found = True
        while found:
            began = time.perf_counter()
            found = self._settle_and_claim()
            times.append(1000 * (time.perf_counter() - began))
        return times

    def _settle_and_claim(self) -> bool:
        now = time.monotonic()
        types, floors = [f"{DOMAIN} {TYPE}"], self._floors.for_claim(now)
        below = self._floors.below(now)
        request = ClaimRequest(_CLAIMED_AT_ONCE, 0, [DOMAIN], types, [], floors, below=below)
        results: list[ClaimResult] = []
        _, claims = self._statements.settle_and_claim(
            self._connection, self._done, request, results.append
        )
        for result in results:
            self._floors.looked(floors, below, request.queues, result, time.monotonic())
        self._done = [Finished(claim, completed(None), 1, 0.0) for claim in claims]
        return bool(claims)


def tag_idle(slot: Place) -> Found:
    """What a fleet of 4 x 8 sends while 100,000 commands (2.5 x --commands) wait for a tag that no
    node has, against one whose threads each ask once a second. And the median time of a claim of
    eight commands that are behind them (--commands / 4), with the settlement of those before,
    against that of the same claim without them."""
    waiting = commands(max(1, int(slot.sizes.commands * _WAITING_TIMES)), type_=TAGGED)
    others = commands(max(_CLAIMED_AT_ONCE, slot.sizes.commands // _OTHERS_PART))
    with yard(slot) as here, slot.connect() as connection:
        here.bus.send_many(waiting)
        windows = _idle(here, len(waiting))
        # It has no node: once its lease has ended, other nodes would look for what it had.
        leader = Leader(connection)

        def claims_ms(*requests: list[SendRequest]) -> list[float]:
            here.clear()
            for each in requests:
                here.bus.send_many(each)
            connection.execute(_VACUUM)
            return leader.drain_ms()

        rounds = [(claims_ms(others), claims_ms(waiting, others)) for _ in range(slot.sizes.rounds)]
    pairs = [(median(without), median(behind)) for without, behind in rounds]
    walks = [round(max(behind), 1) for _, behind in rounds]
    configuration = {"waiting": len(waiting), "commands": len(others), "longest_ms": walks}
    return {
        "tag-idle": windows,
        "tag-claim": Comparison(pairs=pairs, configuration=configuration, less=True),
    }


def _idle(here: Yard, waiting: int) -> Comparison:
    """Of a fleet without the tag."""
    app = "benches.selecting:registry"
    with fleet(here.slot.dsn, {}, processes=4, threads=8, app=app):
        return idle_windows(here, waiting=waiting)
