"""What a handler gets, for tests that call it as a function: a command whose data has passed
through JSON, and a context that remembers what the handler has asked for."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID, uuid4

from cmdbus.checks import check_iterable, check_name, check_seconds, check_whole
from cmdbus.clock import time
from cmdbus.command import Command
from cmdbus.context import Batch, Context
from cmdbus.data import check_encoder, decode, encode
from cmdbus.errors import InvalidOperationError
from cmdbus.forwarding import ForwardedHeaders
from cmdbus.headers import FORWARDED, NO_HEADERS, Headers, check_headers, selected
from cmdbus.integrations.callers_connection import CallersConnection, session_of
from cmdbus.payloads.forms import Encoder
from cmdbus.payloads.models import model_of
from cmdbus.payloads.pydantic_models import is_pydantic
from cmdbus.priorities import PRIORITIES, check_priority
from cmdbus.producer.requests import SendRequest
from cmdbus.timeouts import Timeouts
from cmdbus.typed_handlers import payload_reader
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.execution.handler_connection import handler_connection

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def make_command(
    domain: str,
    type: str,
    data: object = None,
    *,
    payload_type: Any = None,
    command_id: UUID | None = None,
    priority: str | int = "normal",
    correlation_id: UUID | None = None,
    reply_to: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Command[Any]:
    """A command as a worker gives it to the handler: its data has passed through JSON. Its payload
    is read as the class of a dataclass or a pydantic model that is given as `data`, else as
    `payload_type`, if that is given."""
    command_id = command_id or uuid4()
    decoded = decode(encode(data))
    kind = payload_type if payload_type is not None else _model_class(data)
    return Command(
        domain=check_name("domain", domain),
        type=check_name("type", type),
        command_id=command_id,
        data=decoded,
        priority=check_priority(priority, PRIORITIES),
        correlation_id=correlation_id or command_id,
        reply_to=reply_to,
        created_at=datetime.now(UTC),
        headers=Headers(check_headers(headers)) if headers else NO_HEADERS,
        payload=decoded if kind is None else payload_reader(kind)(decoded),
    )


def _model_class(data: object) -> Any:
    kind = data.__class__
    return kind if is_pydantic(kind) or model_of(kind) is not None else None


class MadeContext(Context):
    """A context without a worker: what the handler has asked for is in its attributes."""

    def __init__(
        self, command: Command, attempt: int, max_attempts: int, made: "_MadeExecution"
    ) -> None:
        super().__init__(command, made, attempt, max_attempts)
        self._made = made

    @property
    def retry_delay(self) -> float | None:
        """The seconds of `retry_after`; None if it was not called."""
        return self._made.retry_delay

    @property
    def again_in(self) -> float | None:
        """The seconds of `again`; None if it was not called."""
        return self._made.again_in

    @property
    def checkpoints(self) -> list[object]:
        """What `checkpoint` was given, as JSON keeps it, in the order of its calls."""
        return self._made.checkpoints.saved

    @property
    def extended(self) -> float:
        """The seconds of all calls of `extend`."""
        return self._made.extended

    @property
    def guarded(self) -> list[str]:
        """The breakers of `breaker`, in the order of its calls, all of which were let through."""
        return self._made.guarded

    @property
    def added(self) -> list[SendRequest]:
        """What was added to the batch."""
        return [] if self._made.own_batch is None else self._made.own_batch.added


def make_context(
    command: Command | None = None,
    *,
    connection: CallersConnection | None = None,
    session: "Session | None" = None,
    attempt: int = 1,
    max_attempts: int = 3,
    timeout: float | None = None,
    canceled: bool = False,
    stopping: bool = False,
    resumed: object = None,
    batch_id: UUID | None = None,
    schema: str = "cmdbus",
    encoder: Encoder | None = None,
) -> MadeContext:
    """A context to call a handler with. Its `connection` shares the transaction of the one that is
    given, and refuses what a worker's refuses; `session` is the one that is given. A handler that
    uses either without it gets an InvalidOperationError. `encoder`: the one of its registry."""
    if batch_id is not None and not isinstance(batch_id, UUID):
        raise ValueError(f"batch_id must be a UUID, not {batch_id!r:.80}")
    given = None if connection is None else session_of(connection)
    seconds = Timeouts().thread if timeout is None else check_seconds("timeout", timeout)
    made = _MadeExecution(given, session, seconds, batch_id, schema)
    made.canceled, made.stopping = canceled, stopping
    made.checkpoints = _Checkpoints(resumed, check_encoder(encoder))
    command = command or make_command("test", "Test")
    check_whole("attempt", attempt, 1)
    return MadeContext(command, attempt, check_whole("max_attempts", max_attempts, 1), made)


class _Checkpoints:
    def __init__(self, resumed: object, encoder: Encoder | None) -> None:
        self.saved: list[object] = []
        self._encoder = encoder
        self._resumed = decode(encode(resumed, what="resumed", encoder=encoder))

    def save(self, data: object) -> None:
        self.saved.append(decode(encode(data, what="checkpoint", encoder=self._encoder)))

    @property
    def latest(self) -> object:
        return self.saved[-1] if self.saved else self._resumed


class _Batch:
    def __init__(self, batch_id: UUID) -> None:
        self.batch_id = batch_id
        self.added: list[SendRequest] = []

    def add(self, requests: Iterable[SendRequest]) -> list[UUID]:
        given = list(check_iterable("requests", requests, "SendRequests"))
        self.added += given
        return [_id_of(each) for each in given]


def _id_of(request: SendRequest) -> UUID:
    given = request.command_id
    return uuid4() if given is None else UUID(str(given))


class _MadeExecution:
    """What a worker does for the handler; see Execution."""

    canceled = False
    stopping = False
    again_in: float | None = None
    checkpoints: "_Checkpoints"

    def __init__(
        self,
        given: Connection | None,
        session: "Session | None",
        seconds: float,
        batch_id: UUID | None,
        schema: str,
    ) -> None:
        self.schema, self.due = schema, time.monotonic() + seconds
        self.retry_delay: float | None = None
        self.extended = 0.0
        self.guarded: list[str] = []
        self.own_batch = None if batch_id is None else _Batch(batch_id)
        self._session = session
        self._connection = None if given is None else handler_connection(given, lambda _: None)

    def open(self) -> Connection:
        return self._connection or _refuse("connection")

    def orm_session(self) -> "Session":
        return self._session or _refuse("session")

    def batch(self) -> Batch | None:
        return self.own_batch

    def extend(self, seconds: float) -> None:
        self.due += seconds
        self.extended += seconds

    def breaker(self, name: str) -> AbstractContextManager[None]:
        return self._let_through(name)

    def forward(self, headers: Mapping[str, str]) -> dict[str, str]:
        """For the handler to read and change; what the test sends has none of them."""
        return ForwardedHeaders(selected(headers, FORWARDED))

    @contextmanager
    def _let_through(self, name: str) -> Iterator[None]:
        self.guarded.append(name)
        yield


def _refuse(name: str) -> NoReturn:
    raise InvalidOperationError(
        f"the handler uses context.{name}, and this context has none: make it with "
        f"make_context({name}=...), or send the command and use run_commands"
    )
