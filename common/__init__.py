"""A command bus on PostgreSQL: programs send commands, and workers run their handlers.

    CommandBus, SendRequest             send commands, read and steer them
    AsyncCommandBus                     sends and reads, for programs on asyncio
    CommandRecord, Status, AuditEvent,
    TroubleRecord, BatchRecord,
    BatchStatus, ReceivedReply,
    LimitRecord, Limit, DeclaredLimit,
    SetLimit, ScheduleRecord,
    AddedSchedule, BridgeRecord,
    BreakerRecord, BreakerState,
    BreakerTerms, DeclaredBreaker,
    SetBreaker,
    NodeRecord, NodeSeat, NodeSlot,
    NodeSteward, NodeExit,
    ExitedCommand, NodeCounters,
    History, HistoryPoint,
    CommandPage, FoundCommand,
    BatchPage, BatchFollowUp, ProcessPage,
    SearchStop, Undecodable             what a CommandBus returns
    HandlerRegistry, handler, Breaker   register handlers, and circuit breakers for their calls
    Command, Context                    what a handler gets
    ExecutionOutcome                    what middleware sees of an execution
    ProcessManager, Reply               the steps of a process, and what they get
    ProcessRequest, ProcessRecord,
    ProcessStatus, ProcessStep          what a CommandBus takes and returns of processes
    RetryPolicy, Timeouts               settings of handlers and workers

    CmdbusError
      TransientCommandError, PermanentCommandError, BusinessRuleError (each a CommandError)
                                        raised by handlers
      BreakerOpenError                  raised to handlers
      DuplicateCommandError, QueueFullError, ShutdownError (each a SendRefusedError),
      CommandFailedError, CallTimeoutError, CommandNotFoundError, BatchNotFoundError,
      ProcessNotFoundError, InvalidOperationError, HandlerAlreadyRegisteredError, SchemaError,
      DatabaseUnavailableError, CronMissingError
                                        raised to callers

    cmdbus.worker.Worker                runs handlers in a process of your own
    cmdbus.embedded.EmbeddedPostgres    a private server for development and tests
    cmdbus.django                       the app, the connection and the tasks of a Django project
    cmdbus.pgmq                         a client of PGMQ's queues
    cmdbus.testing                      tests of applications, and fixtures for pytest
    cmdbus.otel                         traces and metrics by OpenTelemetry

All other modules are internal. The names above are those of `from cmdbus import ...`; they are
loaded when they are first used, because the supervising process imports this package and must
never load a database driver.
"""

if __name__ != "cmdbus":
    raise ImportError(f"this directory is cmdbus, not {__name__}: pip install -e .")

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmdbus.asynchronous.bus import AsyncCommandBus as AsyncCommandBus
    from cmdbus.breakers import Breaker as Breaker
    from cmdbus.breakers import BreakerState as BreakerState
    from cmdbus.breakers import BreakerTerms as BreakerTerms
    from cmdbus.command import Command as Command
    from cmdbus.context import Context as Context
    from cmdbus.data import Undecodable as Undecodable
    from cmdbus.errors import BatchNotFoundError as BatchNotFoundError
    from cmdbus.errors import BreakerOpenError as BreakerOpenError
    from cmdbus.errors import BusinessRuleError as BusinessRuleError
    from cmdbus.errors import CallTimeoutError as CallTimeoutError
    from cmdbus.errors import CmdbusError as CmdbusError
    from cmdbus.errors import CommandError as CommandError
    from cmdbus.errors import CommandFailedError as CommandFailedError
    from cmdbus.errors import CommandNotFoundError as CommandNotFoundError
    from cmdbus.errors import CronMissingError as CronMissingError
    from cmdbus.errors import DatabaseUnavailableError as DatabaseUnavailableError
    from cmdbus.errors import DuplicateCommandError as DuplicateCommandError
    from cmdbus.errors import HandlerAlreadyRegisteredError as HandlerAlreadyRegisteredError
    from cmdbus.errors import InvalidOperationError as InvalidOperationError
    from cmdbus.errors import PermanentCommandError as PermanentCommandError
    from cmdbus.errors import ProcessNotFoundError as ProcessNotFoundError
    from cmdbus.errors import QueueFullError as QueueFullError
    from cmdbus.errors import SchemaError as SchemaError
    from cmdbus.errors import SendRefusedError as SendRefusedError
    from cmdbus.errors import ShutdownError as ShutdownError
    from cmdbus.errors import TransientCommandError as TransientCommandError
    from cmdbus.execution_outcome import ExecutionOutcome as ExecutionOutcome
    from cmdbus.limits import Limit as Limit
    from cmdbus.processes.process_manager import ProcessManager as ProcessManager
    from cmdbus.producer.breakers import BreakerRecord as BreakerRecord
    from cmdbus.producer.breakers import DeclaredBreaker as DeclaredBreaker
    from cmdbus.producer.breakers import SetBreaker as SetBreaker
    from cmdbus.producer.bridges import BridgeRecord as BridgeRecord
    from cmdbus.producer.bus import CommandBus as CommandBus
    from cmdbus.producer.found_commands import CommandPage as CommandPage
    from cmdbus.producer.found_commands import FoundCommand as FoundCommand
    from cmdbus.producer.found_commands import SearchStop as SearchStop
    from cmdbus.producer.history import History as History
    from cmdbus.producer.history import HistoryPoint as HistoryPoint
    from cmdbus.producer.limits import DeclaredLimit as DeclaredLimit
    from cmdbus.producer.limits import LimitRecord as LimitRecord
    from cmdbus.producer.limits import SetLimit as SetLimit
    from cmdbus.producer.node_records import ExitedCommand as ExitedCommand
    from cmdbus.producer.node_records import NodeCounters as NodeCounters
    from cmdbus.producer.node_records import NodeExit as NodeExit
    from cmdbus.producer.node_records import NodeRecord as NodeRecord
    from cmdbus.producer.node_records import NodeSeat as NodeSeat
    from cmdbus.producer.node_records import NodeSlot as NodeSlot
    from cmdbus.producer.node_records import NodeSteward as NodeSteward
    from cmdbus.producer.pages import BatchFollowUp as BatchFollowUp
    from cmdbus.producer.pages import BatchPage as BatchPage
    from cmdbus.producer.pages import ProcessPage as ProcessPage
    from cmdbus.producer.process_records import ProcessRecord as ProcessRecord
    from cmdbus.producer.process_records import ProcessStatus as ProcessStatus
    from cmdbus.producer.process_records import ProcessStep as ProcessStep
    from cmdbus.producer.process_starts import ProcessRequest as ProcessRequest
    from cmdbus.producer.records import AuditEvent as AuditEvent
    from cmdbus.producer.records import BatchRecord as BatchRecord
    from cmdbus.producer.records import BatchStatus as BatchStatus
    from cmdbus.producer.records import CommandRecord as CommandRecord
    from cmdbus.producer.records import ReceivedReply as ReceivedReply
    from cmdbus.producer.records import Status as Status
    from cmdbus.producer.records import TroubleRecord as TroubleRecord
    from cmdbus.producer.requests import SendRequest as SendRequest
    from cmdbus.producer.schedules import AddedSchedule as AddedSchedule
    from cmdbus.producer.schedules import ScheduleRecord as ScheduleRecord
    from cmdbus.registry import HandlerRegistry as HandlerRegistry
    from cmdbus.registry import handler as handler
    from cmdbus.reply import Reply as Reply
    from cmdbus.retry import RetryPolicy as RetryPolicy
    from cmdbus.timeouts import Timeouts as Timeouts

_NAMES = {
    "asynchronous.bus": ["AsyncCommandBus"],
    "breakers": ["Breaker", "BreakerState", "BreakerTerms"],
    "producer.bus": ["CommandBus"],
    "command": ["Command"],
    "context": ["Context"],
    "data": ["Undecodable"],
    "errors": [
        "BatchNotFoundError",
        "BreakerOpenError",
        "BusinessRuleError",
        "CallTimeoutError",
        "CmdbusError",
        "CommandError",
        "CommandFailedError",
        "CommandNotFoundError",
        "CronMissingError",
        "DatabaseUnavailableError",
        "DuplicateCommandError",
        "HandlerAlreadyRegisteredError",
        "InvalidOperationError",
        "PermanentCommandError",
        "ProcessNotFoundError",
        "QueueFullError",
        "SchemaError",
        "SendRefusedError",
        "ShutdownError",
        "TransientCommandError",
    ],
    "execution_outcome": ["ExecutionOutcome"],
    "limits": ["Limit"],
    "processes.process_manager": ["ProcessManager"],
    "producer.breakers": ["BreakerRecord", "DeclaredBreaker", "SetBreaker"],
    "producer.bridges": ["BridgeRecord"],
    "producer.found_commands": ["CommandPage", "FoundCommand", "SearchStop"],
    "producer.history": ["History", "HistoryPoint"],
    "producer.limits": ["DeclaredLimit", "LimitRecord", "SetLimit"],
    "producer.node_records": [
        "ExitedCommand",
        "NodeCounters",
        "NodeExit",
        "NodeRecord",
        "NodeSeat",
        "NodeSlot",
        "NodeSteward",
    ],
    "producer.pages": ["BatchFollowUp", "BatchPage", "ProcessPage"],
    "producer.process_records": ["ProcessRecord", "ProcessStatus", "ProcessStep"],
    "producer.process_starts": ["ProcessRequest"],
    "reply": ["Reply"],
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
    "producer.schedules": ["AddedSchedule", "ScheduleRecord"],
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
