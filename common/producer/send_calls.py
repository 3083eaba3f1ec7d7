"""What all calls that send have in common: the hook `on_send`, the instruments of the process, and
calls that are repeated."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from cmdbus import instruments
from cmdbus.database.pool import Connection
from cmdbus.forwarding import default_headers
from cmdbus.headers import encode_with_defaults
from cmdbus.instrument_hooks import ObservedSend
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.connections import Connections
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.requests import Outgoing, SendRequest, SendRules
from cmdbus.producer.send_hook import Hook, SendHook
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.store import Store

T = TypeVar("T")


class SendCalls:
    """The calls of a CommandBus that send. A Sender writes what they have checked."""

    def __init__(
        self, connections: Connections, rules: SendRules, store: Store, on_send: Hook | None
    ) -> None:
        self._connections, self._rules = connections, rules
        self._on_send = None if on_send is None else SendHook(on_send, rules.encoder)
        self.sender = Sender(store)

    def one(self, request: SendRequest, connection: CallersConnection | None) -> UUID:
        if instruments.installed:
            with ObservedSend([request], "send") as sending:
                command_id = self._write_one(request, connection)
                sending.sent([command_id])
                return command_id
        return self._write_one(request, connection)

    def _write_one(self, request: SendRequest, connection: CallersConnection | None) -> UUID:
        if self._on_send is not None:
            request = self.apply_hook(request)
        command = self._rules.check(request, new_id(), default_headers())
        return self.run(connection, lambda c, attempt: self.sender.send(c, command, attempt))

    def for_call(
        self,
        request: SendRequest,
        command: Outgoing,
        caller: int,
        connection: CallersConnection | None,
        within: float,
    ) -> None:
        """Sends a request that was checked; `caller`: see Sender.send."""

        def write(command: Outgoing) -> None:
            self.run(
                connection,
                lambda c, attempt: self.sender.send(c, command, attempt, caller),
                within,
            )

        if not instruments.installed:
            write(command)
            return
        with ObservedSend([request], "call") as sending:
            # Instruments are asked for headers where it is sent: in a thread, on asyncio.
            write(
                command._replace(headers=encode_with_defaults(request.headers, default_headers()))
            )
            sending.sent([command.command_id])

    def many(
        self, requests: Sequence[SendRequest], connection: CallersConnection | None
    ) -> list[UUID]:
        if instruments.installed and requests:
            with ObservedSend(requests, "send_many") as sending:
                ids = self._write_many(requests, connection)
                sending.sent(ids)
                return ids
        return self._write_many(requests, connection)

    def _write_many(
        self, requests: Sequence[SendRequest], connection: CallersConnection | None
    ) -> list[UUID]:
        if self._on_send is not None:
            requests = [*map(self.apply_hook, requests)]
        bulk = BulkSend(requests)
        if requests:
            check = self._rules.check
            self.run(connection, lambda c, attempt: self.sender.send_all(c, bulk, check, attempt))
        return bulk.ids

    def apply_hook(self, request: SendRequest) -> SendRequest:
        return request if self._on_send is None else self._on_send(request)

    def run(
        self,
        connection: CallersConnection | None,
        send: Callable[[Connection, SendAttempt], T],
        within: float | None = None,
    ) -> T:
        """Sends in the caller's transaction, or as a call that may be repeated. `within`: see `use`
        of the connections."""
        number = None if connection is not None else new_call()
        return self._connections.use(
            connection, lambda c, again: send(c, SendAttempt(number, again)), "producer", within
        )
