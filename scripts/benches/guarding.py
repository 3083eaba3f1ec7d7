"""What an open breaker costs the commands that are not behind it."""

import time
from statistics import fmean

import psycopg

from benches.comparison import Comparison, Found, Place
from benches.fleet import DOMAIN, TYPE, fleet, nothing
from benches.fleet import registry as registry_of_handlers
from benches.waiting import idle_windows
from benches.yard import commands, yard
from cmdbus.breakers import Breaker
from cmdbus.database import schema
from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import ClaimRequest, ClaimResult
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.floors import Floors

OTHER, BREAKER = "Other", "bench"

#: Of --commands.
_WAITING_TIMES = 2.5
_CLAIMED_AT_ONCE, _CLAIMS = 8, 50

_CLAIMED = "SELECT FROM cmdbus.ready WHERE claimer IS NOT NULL"
_DECLARED = "SELECT FROM cmdbus.migration WHERE NOT EXISTS (SELECT FROM cmdbus.breaker)"
_VACUUM = "VACUUM cmdbus.ready"


def registry() -> HandlerRegistry:
    """The app: the type that is measured is bound to a breaker."""
    made = HandlerRegistry()
    made.breaker(Breaker(BREAKER))
    for handler in registry_of_handlers():
        breaker = BREAKER if handler.type == TYPE else None
        made.register(handler.domain, handler.type, handler.function, breaker=breaker)
    return made


def breaker_idle(slot: Place) -> Found:
    """What a fleet of 4 x 8 sends while 100,000 commands (2.5 x --commands) wait behind an open
    breaker, against one whose threads each ask once a second. And the mean time of claims of eight
    commands of another type that are behind these in their domain, by a worker that does not claim
    their type, against that of the same claims without them."""
    count = max(1, int(slot.sizes.commands * _WAITING_TIMES))
    statements = ClaimStatements(schema.DEFAULT, Timeouts().lease)
    handlers = {TYPE: nothing, OTHER: nothing}
    with yard(slot) as here, slot.connect() as connection:
        statements.register(connection, "bench")
        with fleet(
            slot.dsn, handlers, processes=4, threads=8, app="benches.guarding:registry"
        ) as running:
            here.await_none(_DECLARED, check=running.check)
            here.bus.breakers.open(BREAKER)
            here.bus.send_many(commands(count))
            here.await_none(_CLAIMED, check=running.check)
            windows = idle_windows(here, waiting=count)
        pairs = []
        for _ in range(slot.sizes.rounds):
            here.clear()
            here.bus.send_many(commands(_CLAIMED_AT_ONCE, type_=OTHER))
            alone = _claim_ms(statements, connection, slot.sizes.seconds)
            here.clear()
            here.bus.send_many(commands(count))
            here.bus.send_many(commands(_CLAIMED_AT_ONCE, type_=OTHER))
            connection.execute(_VACUUM)
            pairs.append((alone, _claim_ms(statements, connection, slot.sizes.seconds)))
    return {
        "breaker-idle": windows,
        "breaker-claim": Comparison(pairs=pairs, configuration={"waiting": count}, less=True),
    }


def _claim_ms(statements: ClaimStatements, connection: psycopg.Connection, seconds: float) -> float:
    """Begins where the latest claim did not end, as a worker does."""
    floors, took = Floors(), list[float]()
    until = time.monotonic() + seconds
    while len(took) < _CLAIMS or time.monotonic() < until:
        now, results = time.monotonic(), list[ClaimResult]()
        request = ClaimRequest(
            *(_CLAIMED_AT_ONCE, 0, [DOMAIN], [f"{DOMAIN} {OTHER}"], []),
            floors=floors.for_claim(now),
            below=floors.below(now),
        )
        with connection.transaction(force_rollback=True):
            began = time.perf_counter()
            _, claims = statements.settle_and_claim(connection, [], request, results.append)
            took.append(1000 * (time.perf_counter() - began))
        assert len(claims) == _CLAIMED_AT_ONCE
        for result in results:
            floors.looked(request.floors, request.below, request.queues, result, now)
    return fmean(took[1:])
