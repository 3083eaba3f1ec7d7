"""Runs due commands in the calling thread with the parts of a worker: claim, execute, settle."""

from collections.abc import Iterator, Sequence

from cmdbus import instrument_hooks, instruments
from cmdbus.board.counters import OutcomeLabel
from cmdbus.errors import InvalidOperationError
from cmdbus.registry import HandlerRegistry
from cmdbus.testing.due import DueClaims
from cmdbus.testing.executed import Executed, executed
from cmdbus.testing.inline_execution import InlineExecution, InlineThread
from cmdbus.testing.savepoints import Savepoint
from cmdbus.timeouts import Timeouts
from cmdbus.worker.breakers.breakers import Breakers
from cmdbus.worker.claims.claim import Claim, Connection, Finished
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import PooledConnections
from cmdbus.worker.claims.ended_executions import other_end, settled_executions
from cmdbus.worker.claims.settlement import settle_one
from cmdbus.worker.declaring import app_of_worker, declare
from cmdbus.worker.pipeline.batch_transitions import BatchTransitions
from cmdbus.worker.pipeline.handled_types import HandledTypes
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.standalone import telemetry_of_one

#: Executions of one run: commands that send each other for ever are never idle.
_MAX_EXECUTIONS = 10_000


class RunnerStatements(ClaimStatements):
    """An outcome that is rejected leaves the transaction of a test usable."""

    def settle(self, connection: Connection, done: Sequence[Finished]) -> list[Claim]:
        with connection.transaction():
            return super().settle(connection, done)


class _OneSession(PooledConnections):
    """The runner's session, as if a pool gave it."""

    def __init__(self, session: Connection) -> None:
        self._session = session

    def get(self, timeout: float | None = None) -> Connection:
        return self._session

    def put(self, connection: Connection) -> None:
        pass


class Runner:
    def __init__(
        self,
        session: Connection,
        registry: HandlerRegistry,
        statements: ClaimStatements,
        timeouts: Timeouts,
        *,
        inside: bool,
    ) -> None:
        """`inside`: the session has an open transaction of the test's."""
        self._session, self._registry = session, registry
        self._statements, self._timeouts, self._inside = statements, timeouts, inside
        statements.types = [handler.name for handler in registry]
        telemetry = telemetry_of_one()
        self._handled_types = HandledTypes(registry, telemetry.seat, timeouts)
        self._in_flight = InFlight(statements, telemetry.seat)
        self._batches = BatchTransitions(statements, self._in_flight)
        self._breakers = Breakers(statements, registry, telemetry.board, _OneSession(session))
        self._thread = InlineThread(session, self._breakers)

    def run(self, *, until_idle: bool) -> Iterator[Executed]:
        """Each execution, once it is settled."""
        self._register()
        count, found = 0, True
        while found:
            due = DueClaims(
                self._session,
                self._statements,
                self._registry,
                self._handled_types,
                self._in_flight,
                self._breakers,
            )
            found = False
            for claim in due.claims():
                found, count = until_idle, count + 1
                if count > _MAX_EXECUTIONS:
                    raise InvalidOperationError(
                        f"{_MAX_EXECUTIONS:,} commands have run, and more are due: commands that "
                        f"send each other for ever are never idle, so leave until='idle' out"
                    )
                yield self._run(claim)

    def _register(self) -> None:
        """As a worker that starts."""
        self._statements.register(self._session)
        app = app_of_worker(None, self._registry)
        declare(self._session, self._statements, app, self._registry.declarations())

    def _run(self, claim: Claim) -> Executed:
        [entry] = self._in_flight.take([claim], lambda: False)
        self._in_flight.start(entry)
        self._batches.claimed([claim])
        savepoint = Savepoint(self._statements, self._session) if self._inside else None
        execution = InlineExecution(
            claim,
            self._handled_types.find(claim.domain, claim.type),
            self._thread,
            self._statements,
            self._timeouts,
            savepoint,
        )
        finished = execution.run()
        if execution.error is not None and not isinstance(execution.error, Exception | SystemExit):
            raise execution.error  # An interrupt, or what pytest fails and skips tests with.
        if savepoint is not None:
            savepoint.roll_back_if_aborted()
        settled = execution.committed if finished is None else self._settle(finished)
        self._leave(claim, settled)
        return executed(claim, settled, execution.error)

    def _settle(self, finished: Finished) -> Finished | None:
        """None if the claim was lost."""
        settled, lost = settle_one(self._statements, self._session, finished)
        return None if lost else settled

    def _leave(self, claim: Claim, settled: Finished | None) -> None:
        """What a worker does after a settlement."""
        if settled is None:
            self._breakers.not_settled(claim)
        else:
            self._breakers.settled([claim])
        if instruments.installed:
            lost = [other_end(claim, OutcomeLabel.LOST)]
            instrument_hooks.settled(lost if settled is None else settled_executions([settled]))
        if (breaker := self._handled_types.find(claim.domain, claim.type).breaker) is not None:
            self._breakers.give_back(breaker, claim)
        self._in_flight.free([claim])
        self._batches.attend_on(self._session)
        if self._breakers.is_due:
            self._breakers.attend(self._session)
