"""The errors of cmdbus as values."""

import copy
import inspect
import pickle
from collections.abc import Iterator
from uuid import uuid4

import pytest

from cmdbus import errors
from cmdbus.errors import CmdbusError, CommandError

ID = uuid4()
#: By the names of the initializers' parameters.
ARGUMENTS = {
    "code": "CODE",
    "message": "a message",
    "details": {"a": 1},
    "retry_after": 2.5,
    "domain": "payments",
    "command_ids": [ID, uuid4()],
    "in_one_call": False,
    "depth": 5,
    "max_depth": 5,
    "count": 1,
    "key": "tenant-42",
    "command_id": ID,
    "batch_id": ID,
    "process_id": ID,
    "status": "CANCELED",
    "state": "PENDING",
    "timeout": 1.0,
    "type": "Debit",
    "name": "gateway",
    "unique": "report",
    "present": "shop.debit",
    "hint": ": choose another one",
    "queue": "orders",
    "part": "archive",
}


class InsufficientFundsError(CommandError):
    """An application's, with arguments of its own."""

    def __init__(self, lacking: int) -> None:
        super().__init__("INSUFFICIENT_FUNDS", f"the account lacks {lacking}")
        self.lacking = lacking


def every() -> Iterator[CmdbusError]:
    yield InsufficientFundsError(7)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, CmdbusError):
            _, *names = inspect.signature(kind.__init__).parameters
            if names == ["args", "kwargs"]:
                yield kind("a message")
            else:
                yield kind(**{name: ARGUMENTS[name] for name in names})


@pytest.mark.parametrize("error", list(every()), ids=lambda error: type(error).__name__)
def test_every_error_comes_through_pickle_and_copy_as_it_is(error: CmdbusError) -> None:
    error.add_note("a note")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert (str(copied), copied.args) == (str(error), error.args)
        assert vars(copied) == vars(error)
