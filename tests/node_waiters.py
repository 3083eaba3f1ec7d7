"""Workers of one node that wait: each is only its leader, and a byte in the pipe wakes one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from eventually import eventually
from handlers import beside

from cmdbus.board.board import Board, Node
from cmdbus.board.counters import Counter
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.waiting.node_waiter import NodeWaiter


def idle() -> bool:
    return False


def busy() -> bool:
    return True


class CountingPipe(WakePipe):
    """Counts the bytes that were put into it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.put_so_far = 0

    def put(self) -> None:
        self.put_so_far += 1
        super().put()


@dataclass
class Fleet:
    """Workers of one node, each of which is only its leader."""

    board: Board
    worker_pipe: CountingPipe
    steward_pipe: WakePipe
    opened: ExitStack
    #: What woke the waits on threads of the test.
    ended: list[Counter | None] = field(default_factory=list)

    def worker(
        self,
        index: int = 0,
        jitter_ms: int = 0,
        poll: float = 60.0,
        leave: Callable[[], None] | None = None,
    ) -> NodeWaiter:
        node = Node(
            board=self.board,
            seat=self.board.seat(index),
            generation=1,
            parent=1,
            worker_pipe=self.worker_pipe,
            steward_pipe=self.steward_pipe,
        )
        waiter = NodeWaiter(node, poll, jitter_ms, leave, check_seconds=0.01)
        self.opened.callback(waiter.stop)
        return waiter

    def woken(self, index: int = 0) -> NodeWaiter:
        """By a byte, without a claim since."""
        waiter = self.worker(index)
        self.worker_pipe.put()
        assert waiter.wait_for_work(idle) is Counter.WAKEUPS_PIPE
        return waiter

    def parked(self, index: int = 0) -> bool:
        return self.board.seat_view(index).parked is not None

    @contextmanager
    def waiting(self, worker: NodeWaiter, index: int = 0) -> Iterator[None]:
        """On a thread, which must have ended at the end."""

        with beside(lambda: self.ended.append(worker.wait_for_work(idle))) as thread:
            try:
                eventually(lambda: self.parked(index))
                yield
                thread.join(10)
                assert not thread.is_alive()
            finally:
                worker.wake()


@contextmanager
def waiting_fleet() -> Iterator[Fleet]:
    """With seats for four workers."""
    with ExitStack() as opened:
        board, worker_pipe, steward_pipe = Board.in_memory(4, 2), CountingPipe(8), WakePipe(1)
        for what in (board, worker_pipe, steward_pipe):
            opened.callback(what.close)
        for index in range(4):
            board.seat(index).enter(pid=1, generation=1, now=1)
        board.listening = True
        board.armed = 1
        yield Fleet(board, worker_pipe, steward_pipe, opened)
