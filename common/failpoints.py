"""Named points between two steps that belong together, at which a test may hold, stop or kill
the process that passes. Without a test, passing one costs some 40 nanoseconds.
"""

from collections.abc import Callable

# In a worker.
#: A claim is committed, and only the database shows it.
AFTER_CLAIM = "after-claim"
#: The handler is called next.
BEFORE_EFFECT = "before-effect"
#: A handler's transaction is settled, and its COMMIT not sent.
BEFORE_COMMIT = "before-commit"
#: It is committed, and still shown as running.
AFTER_COMMIT = "after-commit"
#: A handler without a transaction has returned; its outcome is not stored yet.
AFTER_RETURN = "after-return"
#: Outcomes are settled; they are not counted yet, and their claims still on the board.
SETTLED = "settled"
# In a steward; all but the two of a rescue also in a worker without a supervisor.
#: The flag for senders is set; some may not see it yet.
ARMED = "armed"
#: Due commands are claimable, and no worker is woken yet.
PROMOTED = "promoted"
#: The sessions of a dead process have ended; its claims are still its own.
IN_RESCUE = "in-rescue"
#: They are released, and its seat does not show it yet.
AFTER_RESCUE = "after-rescue"
#: Ticks of a schedule are due, and nothing is sent yet.
BEFORE_TICK = "before-tick"
#: Their commands are sent, and this process does not act on that yet.
AFTER_TICK = "after-tick"
#: A bridge is to move messages or commands.
BEFORE_MOVE = "before-move"
#: They are moved, and this process does not act on that yet.
AFTER_MOVE = "after-move"
# In a supervisor.
#: A seat is assigned to a process that does not exist yet.
BEFORE_FORK = "before-fork"
#: The child starts.
IN_CHILD = "in-child"
#: The child exists, and the supervisor does not watch it yet.
AFTER_FORK = "after-fork"
#: A dead process is reaped, and its seat does not show it yet.
IN_REAP = "in-reap"

_action: Callable[[str], None] | None = None


def failpoint(point: str) -> None:
    if _action is not None:
        _action(point)


def set_failpoint_action(action: Callable[[str], None] | None) -> None:
    """For tests: each passing thread calls the action from now on, also in forked children."""
    global _action
    _action = action
