"""Named points between two things that belong together, at which a test may hold, stop or kill
the process that passes. Where no test does, passing one costs some 40 nanoseconds.
"""

from collections.abc import Callable

# In a worker.
#: A claim is committed, and only the database knows.
AFTER_CLAIM = "after-claim"
#: The handler is called next.
BEFORE_EFFECT = "before-effect"
#: A handler's transaction is settled, and its COMMIT not sent.
BEFORE_COMMIT = "before-commit"
#: It is committed, and still shown as running.
AFTER_COMMIT = "after-commit"
#: A handler without a transaction has returned; its outcome is nowhere yet.
AFTER_RETURN = "after-return"
#: Outcomes are settled, and neither counted nor forgotten.
SETTLED = "settled"
# In a steward; the first two also in a worker that has none.
#: The flag for senders is up, perhaps not for all of them.
ARMED = "armed"
#: Due commands are claimable, and no worker is woken yet.
PROMOTED = "promoted"
#: The sessions of a dead process have ended; its claims are still its own.
IN_RESCUE = "in-rescue"
#: They are handed back, and its seat does not say so.
AFTER_RESCUE = "after-rescue"
# In a supervisor.
#: A seat is given to a process that is not there yet.
BEFORE_FORK = "before-fork"
#: In the child, which has done nothing yet.
IN_CHILD = "in-child"
#: The child exists, and the supervisor does not watch it yet.
AFTER_FORK = "after-fork"
#: A dead process is reaped, and its seat does not say so.
IN_REAP = "in-reap"

_action: Callable[[str], None] | None = None


def failpoint(point: str) -> None:
    if _action is not None:
        _action(point)


def set_failpoint_action(action: Callable[[str], None] | None) -> None:
    """For tests: what each passing thread does from now on, also in the processes that this one
    forks."""
    global _action
    _action = action
