"""What a caller asks to be sent, and the checks that it passes on its way. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.checks import (
    check_aware,
    check_id,
    check_key,
    check_name,
    check_text,
    check_whole,
    seconds_of,
    shown,
)
from cmdbus.data import CEILING_BYTES, check_encoder, encode
from cmdbus.headers import encode_with_defaults
from cmdbus.payloads.forms import Encoder
from cmdbus.priorities import PRIORITIES, check_priority
from cmdbus.retry import MAX_ATTEMPTS
from cmdbus.uniqueness import FINISHED, REJECT, check_unique

MAX_DELAY = timedelta(days=36525)
EXPIRES_EARLY = "expires must be later than delay or run_at: the command would never start"
#: Columns that most commands leave empty, by the field of a request. One is an argument of a send,
#: and a column of a bulk, only where it has a value.
SELDOM = {
    "key": "key",
    "unique": "unique_key",
    "expires": "expires_at",
    "headers": "headers",
}


@dataclass(slots=True)
class SendRequest:
    """One command to send; the arguments of `CommandBus.send`.

    `command_id` is an id of the caller's, taken once in a domain while the command and its history
    are kept. `priority` is a label or 0 (first) to 10 (last). `delay` (seconds or a timedelta) or
    `run_at` (an aware datetime) is when it may run. `correlation_id` follows the command
    everywhere; by default it is its id. The command of type Reply goes to the domain `reply_to`.
    `max_attempts` wins over the handler's. `key` is a text of 1 to 200 characters, for example a
    customer's name, by which limits count. What has not started by `expires` (seconds, a timedelta
    or an aware datetime) is CANCELED with the code EXPIRED. `headers` are up to 32 texts by name,
    kept beside the data: a trace's id, a tenant.

    `unique`, another text of 1 to 200 characters, is a key that one command of the domain has at a
    time: until it is "finished" or "started" (claimed by a worker), or for some seconds from the
    send (`unique_until`); a canceled command has none. If a command has the key, `on_conflict`
    "reject" raises DuplicateCommandError, "existing" returns the id of that command, and "replace"
    cancels it (code REPLACED) in the same transaction, if it was never claimed, and rejects else.
    """

    domain: str
    type: str
    data: Any = None
    command_id: UUID | str | None = None
    priority: str | int = "normal"
    #: Seconds, or a timedelta.
    delay: float | timedelta | None = None
    #: An aware datetime; not together with `delay`.
    run_at: datetime | None = None
    correlation_id: UUID | str | None = None
    reply_to: str | None = None
    max_attempts: int | None = None
    key: str | None = None
    unique: str | None = None
    on_conflict: str = "reject"
    unique_until: str | float | timedelta = "finished"
    #: Seconds, a timedelta or an aware datetime.
    expires: float | timedelta | datetime | None = None
    headers: Mapping[str, str] | None = None
    #: What the hook of the bus has changed, as JSON text.
    changes: str | None = field(default=None, init=False, repr=False, compare=False)


class Outgoing(NamedTuple):
    """A request that passed every check."""

    domain: str
    type: str
    data: str
    command_id: UUID
    #: The caller brought the id.
    own: bool
    priority: int
    #: Seconds.
    delay: float | None
    run_at: datetime | None
    correlation_id: UUID
    reply_to: str | None
    max_attempts: int | None
    key: str | None = None
    #: Seconds, or a time.
    expires_at: float | datetime | None = None
    #: JSON text, for the audit trail.
    changes: str | None = None
    #: JSON text.
    headers: str | None = None
    #: Of uniqueness.Unique.
    unique_key: str | None = None
    on_conflict: str | None = None
    unique_until: str | None = None


@dataclass(frozen=True, slots=True)
class SendRules:
    """What a bus takes: labels of priorities, and payloads up to a size, with the forms of the
    application's own types."""

    priorities: Mapping[str, int]
    max_bytes: int
    encoder: Encoder | None = None

    @classmethod
    def of(
        cls,
        priorities: Mapping[str, int] | None,
        max_bytes: int,
        encoder: Encoder | None = None,
    ) -> "SendRules":
        own = {}
        for label, value in (priorities or {}).items():
            if not isinstance(label, str):
                raise ValueError(f"a priority's label must be a string, not {label!r:.80}")
            own[label] = check_priority(value, {})
        size = check_whole("max_bytes", max_bytes, 1, CEILING_BYTES)
        return cls({**PRIORITIES, **own}, size, check_encoder(encoder))

    def encode(self, value: object, what: str = "data") -> str:
        return encode(value, what=what, max_bytes=self.max_bytes, encoder=self.encoder)

    def check(
        self, request: SendRequest, spare_id: UUID, defaults: Mapping[str, str] | None = None
    ) -> Outgoing:
        """The request as it will be written, with `spare_id` if it brings none, and with the
        headers in `defaults` of whose names it has no own; or a ValueError."""
        brought, headers = request.command_id, request.headers
        command_id = spare_id if brought is None else check_id("command_id", brought)
        correlation = request.correlation_id
        command = Outgoing(
            check_name("domain", request.domain),
            check_name("type", request.type),
            encode(request.data, max_bytes=self.max_bytes, encoder=self.encoder),
            command_id,
            brought is not None,
            check_priority(request.priority, self.priorities),
            check_delay(request.delay, request.run_at),
            check_aware("run_at", request.run_at),
            command_id if correlation is None else check_id("correlation_id", correlation),
            None if request.reply_to is None else check_name("reply_to", request.reply_to),
            None
            if request.max_attempts is None
            else check_whole("max_attempts", request.max_attempts, 1, MAX_ATTEMPTS),
            check_key("key", request.key),
            check_expires(request.expires, request.delay, request.run_at),
            request.changes,
            None
            if headers is None and defaults is None
            else encode_with_defaults(headers, defaults),
        )
        if (
            request.unique is None
            and request.on_conflict == REJECT
            and request.unique_until == FINISHED
        ):
            return command
        unique = check_unique(request.unique, request.on_conflict, request.unique_until)
        return command._replace(**unique._asdict())


def check_delay(delay: float | timedelta | None, run_at: datetime | None) -> float | None:
    """In seconds."""
    if delay is None:
        return None
    if run_at is not None:
        raise ValueError("delay and run_at say the same thing: give one of them")
    seconds = seconds_of(delay)
    if seconds is None:
        raise ValueError(f"delay must be seconds or a timedelta, not {shown(delay)}")
    if not 0 <= seconds <= MAX_DELAY.total_seconds():  # NaN neither
        raise ValueError(
            f"delay must be from 0 seconds to {MAX_DELAY.days} days, not {shown(delay)}"
        )
    return float(seconds)


def check_expires(
    expires: float | timedelta | datetime | None,
    delay: float | timedelta | None,
    run_at: datetime | None,
) -> float | datetime | None:
    """In seconds, or a time. Where only the server's clock can say whether that is before the
    command is due, it decides."""
    if expires is None:
        return None
    if isinstance(expires, datetime):
        time = check_aware("expires", expires)
        due = check_aware("run_at", run_at)
        if time is not None and due is not None and time <= due:
            raise ValueError(EXPIRES_EARLY)
        return time
    seconds = seconds_of(expires)
    if seconds is None:
        raise ValueError(
            f"expires must be seconds, a timedelta or an aware datetime, not {shown(expires)}"
        )
    if not 0 < seconds <= MAX_DELAY.total_seconds():  # NaN neither
        raise ValueError(
            f"expires must be more than 0 seconds and at most {MAX_DELAY.days} days, "
            f"not {shown(expires)}"
        )
    waits = check_delay(delay, run_at)
    if waits is not None and seconds <= waits:
        raise ValueError(EXPIRES_EARLY)
    return float(seconds)


def expiry_of(command: Outgoing, now: datetime) -> datetime | None:
    """When it expires; a ValueError if that is before it is due. `now` is the server's time."""
    time, due = command.expires_at, command.run_at
    if time is None:
        return None
    now = now.astimezone(UTC)
    if not isinstance(time, datetime):
        time = now + timedelta(seconds=time)
    if command.delay is not None:
        due = now + timedelta(seconds=command.delay)
    if due is not None and time <= due:
        raise ValueError(EXPIRES_EARLY)
    return time


def check_command(domain: str, command_id: UUID | str) -> dict[str, Any]:
    """Values of a statement about one command."""
    name = check_name("domain", domain)
    return {"domain": name, "command_id": check_id("command_id", command_id)}


def check_conditions(
    domain: str | None,
    type: str | None,
    since: datetime | None,
    until: datetime | None,
    **texts: str | None,
) -> dict[str, Any]:
    """Values of a statement; None leaves a condition out."""
    return {
        "domain": None if domain is None else check_name("domain", domain),
        "type": None if type is None else check_name("type", type),
        "since": check_aware("since", since),
        "until": check_aware("until", until),
        **{name: check_text(name, text) for name, text in texts.items()},
    }
