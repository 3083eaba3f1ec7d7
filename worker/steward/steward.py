"""What a node needs from the database beside its commands: a thread of rounds, and one that
listens. A fleet has a process for it; a standalone worker runs it among its own threads.

    Listening     hears notifications, and wakes one worker for each
    LeaseRound    renews the leases of the living
    TimerRound    promotes due commands, and wakes a worker for leases that have ended
    Arming        asks senders for notifications while a worker waits
"""

from collections.abc import Callable, Sequence

from cmdbus.board.board import Node
from cmdbus.board.slots import Slot
from cmdbus.database import dsn as dsns
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claims import Claims
from cmdbus.worker.claims.connections import ThreadConnection, Unpooled
from cmdbus.worker.claims.pools import session_settings
from cmdbus.worker.steward.lease_round import LeaseRound
from cmdbus.worker.steward.listening import Listening
from cmdbus.worker.steward.rounds import ROUND_SECONDS, Round, Rounds
from cmdbus.worker.steward.timer_round import TimerRound
from cmdbus.worker.waiting.arming import Arming
from cmdbus.worker.waiting.timers import Timers

#: Seconds for one statement that moves one row: 16 MiB at 0.3 MB/s.
_ONE_ROW_SECONDS = 60.0


#: Seconds for any other statement of the steward.
STATEMENT_SECONDS = 5.0


class Steward:
    def __init__(
        self,
        node: Node,
        claims: Claims,
        connect: Callable[[], Connection],
        *,
        domains: Sequence[str],
        poll_interval: float,
        slots: tuple[Slot, Slot],
        listen: bool = True,
        register: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """`slots` show the two threads on the board. `register` is repeated until it succeeds,
        before anything else. The claims' types are those of the node."""
        self._node = node
        self._claims = claims
        self._register = register
        self._session = ThreadConnection(Unpooled(connect))
        rounds_slot, listening_slot = slots
        self.rounds = Rounds(
            self._session,
            node.steward_pipe,
            rounds_slot,
            opening=self._open,
            closing=self._close,
            passed=self._passed,
            lost=self._lost,
        )
        self.listening = Listening(node, claims, connect, listening_slot, enabled=listen)
        self._arming = Arming(
            claims, node.board, node.worker_pipe, domains, look=self.listening.due_earlier.set
        )
        timers = Timers(claims, domains, claims.types, timeout=self._allow_one_row)
        self.timers = TimerRound(node, claims, timers, self._arming, self.listening, poll_interval)

    def start(self, others: Sequence[Round] = ()) -> None:
        """`others` run beside the rounds that every node needs."""
        # Leases first: what the dead held can wait longer than the leases of the living.
        leases = LeaseRound(self._claims, self._node.board)
        self.rounds.rounds = [
            *[self.listening.run, leases.run],
            *others,
            *[self.timers.run, self._arm],
        ]
        self._node.board.listening = False
        self._node.board.armed = 0
        self.rounds.start()

    def stop(self, seconds: float = ROUND_SECONDS) -> None:
        self.listening.stop()
        self.rounds.stop(seconds)
        self._node.board.listening = False

    @property
    def fault(self) -> str:
        """Why its process needs another steward; empty if it does not."""
        threads = (self.rounds.thread, self.listening.thread)
        ended = [t.name for t in threads if t.ident is not None and not t.is_alive()]
        return f"the thread {ended[0]} has ended" if ended else ""

    def set_poll_interval(self, seconds: float) -> None:
        self.timers.poll_interval = seconds
        self.listening.due_earlier.set()
        self._node.steward_pipe.put()

    def _open(self, connection: Connection) -> float:
        self._register(connection)
        self.listening.start()
        self._node.worker_pipe.put()  # A dead process may have taken a byte.
        return 0.0

    def _close(self, connection: Connection) -> float:
        self._claims.value(connection, "leave", node=self._claims.incarnation)
        return 0.0

    def _passed(self, succeeded: bool) -> None:
        # Processes that see a listening steward do not poll: it must also arm, and read timers.
        self._node.board.listening = self.listening.is_on and succeeded

    def _lost(self) -> None:
        self._arming.forget()

    def _allow_one_row(self) -> float:
        self.rounds.allow(_ONE_ROW_SECONDS + ROUND_SECONDS)
        return _ONE_ROW_SECONDS

    def _arm(self, connection: Connection) -> float:
        return self._arming.update(
            connection,
            parked=self._node.board.snapshot(claims=False).any_parked,
            session=self.listening.session,
            looks_at=self.timers.due_at,
        )


def connect(
    parts: dsns.Parts,
    claims: Claims,
    timeouts: Timeouts,
    statement_seconds: float = STATEMENT_SECONDS,
) -> Connection:
    settings = {**session_settings(timeouts), "statement_timeout": f"{statement_seconds:g}s"}
    return dsns.connect(
        dsns.complete(parts, application_name=claims.application_name, settings=settings)
    )
