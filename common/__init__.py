"""A command bus on PostgreSQL: programs send commands, and workers run their handlers.

    CommandBus, SendRequest             send commands, read and steer them
    CommandRecord, Status, AuditEvent,
    TroubleRecord, BatchRecord,
    BatchStatus, ReceivedReply,
    Undecodable                         what a CommandBus returns
    HandlerRegistry, handler            register handlers
    Command, Context                    what a handler gets
    RetryPolicy, Timeouts               settings of handlers and workers

    CmdbusError
      TransientCommandError, PermanentCommandError, BusinessRuleError (each a CommandError)
                                        raised by handlers
      DuplicateCommandError, QueueFullError, ShutdownError (each a SendRefusedError),
      CommandFailedError, CommandNotFoundError, BatchNotFoundError, InvalidOperationError,
      HandlerAlreadyRegisteredError, SchemaError, DatabaseUnavailableError
                                        raised to callers

    cmdbus.worker.Worker                runs handlers in a process of your own
    cmdbus.embedded.EmbeddedPostgres    a private server for development and tests

All other modules are internal. The names above are those of `from cmdbus import ...`; they are
loaded when they are first used, because the supervising process imports this package and must
never load a database driver.
"""

if __name__ != "cmdbus":
    raise ImportError(f"this directory is cmdbus, not {__name__}: pip install -e .")

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmdbus.command import Command as Command
    from cmdbus.context import Context as Context
    from cmdbus.data import Undecodable as Undecodable
    from cmdbus.errors import BatchNotFoundError as BatchNotFoundError
    from cmdbus.errors import BusinessRuleError as BusinessRuleError
    from cmdbus.errors import CmdbusError as CmdbusError
    from cmdbus.errors import CommandError as CommandError
    from cmdbus.errors import CommandFailedError as CommandFailedError
    from cmdbus.errors import CommandNotFoundError as CommandNotFoundError
    from cmdbus.errors import DatabaseUnavailableError as DatabaseUnavailableError
    from cmdbus.errors import DuplicateCommandError as DuplicateCommandError
    from cmdbus.errors import HandlerAlreadyRegisteredError as HandlerAlreadyRegisteredError
    from cmdbus.errors import InvalidOperationError as InvalidOperationError
    from cmdbus.errors import PermanentCommandError as PermanentCommandError
    from cmdbus.errors import QueueFullError as QueueFullError
    from cmdbus.errors import SchemaError as SchemaError
    from cmdbus.errors import SendRefusedError as SendRefusedError
    from cmdbus.errors import ShutdownError as ShutdownError
    from cmdbus.errors import TransientCommandError as TransientCommandError
    from cmdbus.producer.bus import CommandBus as CommandBus
    from cmdbus.producer.records import AuditEvent as AuditEvent
    from cmdbus.producer.records import BatchRecord as BatchRecord
    from cmdbus.producer.records import BatchStatus as BatchStatus
    from cmdbus.producer.records import CommandRecord as CommandRecord
    from cmdbus.producer.records import ReceivedReply as ReceivedReply
    from cmdbus.producer.records import Status as Status
    from cmdbus.producer.records import TroubleRecord as TroubleRecord
    from cmdbus.producer.requests import SendRequest as SendRequest
    from cmdbus.registry import HandlerRegistry as HandlerRegistry
    from cmdbus.registry import handler as handler
    from cmdbus.retry import RetryPolicy as RetryPolicy
    from cmdbus.timeouts import Timeouts as Timeouts

_NAMES = {
    "producer.bus": ["CommandBus"],
    "command": ["Command"],
    "context": ["Context"],
    "data": ["Undecodable"],
    "errors": [
        "BatchNotFoundError",
        "BusinessRuleError",
        "CmdbusError",
        "CommandError",
        "CommandFailedError",
        "CommandNotFoundError",
        "DatabaseUnavailableError",
        "DuplicateCommandError",
        "HandlerAlreadyRegisteredError",
        "InvalidOperationError",
        "PermanentCommandError",
        "QueueFullError",
        "SchemaError",
        "SendRefusedError",
        "ShutdownError",
        "TransientCommandError",
    ],
    "producer.records": [
        "AuditEvent",
        "BatchRecord",
        "BatchStatus",
        "CommandRecord",
        "ReceivedReply",
        "Status",
        "TroubleRecord",
    ],
    "registry": ["HandlerRegistry", "handler"],
    "producer.requests": ["SendRequest"],
    "retry": ["RetryPolicy"],
    "timeouts": ["Timeouts"],
}
_HOME = {name: f"cmdbus.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'cmdbus' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
