"""What all calls that send have in common: the hook `on_send`, the instruments of the process, and
calls that are repeated."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, TypeVarTuple
from uuid import UUID

from cmdbus import instruments
from cmdbus.database.pool import Connection
from cmdbus.forwarding import default_headers
from cmdbus.headers import encode_with_defaults
from cmdbus.instrument_hooks import observing_send
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.connections import Connections
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.positions import Positions
from cmdbus.producer.requests import Outgoing, SendRequest, SendRules
from cmdbus.producer.send_hook import Hook, SendHook
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.store import Store

T = TypeVar("T")
What = TypeVarTuple("What")


class SendCalls:
    """The calls of a CommandBus that send. A Sender writes what they have checked."""

    def __init__(
        self, connections: Connections, rules: SendRules, store: Store, on_send: Hook | None
    ) -> None:
        self._connections, self._rules = connections, rules
        self._on_send = None if on_send is None else SendHook(on_send, rules.encoder)
        self.sender = Sender(store)

    def one(self, request: SendRequest, connection: CallersConnection | None) -> UUID:
        with observing_send([request], "send") as sending:
            if self._on_send is not None:
                request = self.apply_hook(request)
            command = self._rules.check(request, new_id(), default_headers())
            command_id = self.run(connection, self.sender.send, command)
            sending.sent([command_id])
            return command_id

    def for_call(
        self,
        request: SendRequest,
        command: Outgoing,
        caller: int,
        connection: CallersConnection | None,
        within: float,
    ) -> None:
        """Sends a request that was checked; `caller`: see Sender.send."""
        with observing_send([request], "call") as sending:
            if instruments.installed:
                # They are asked for headers where it is sent: in a thread, on asyncio.
                headers = encode_with_defaults(request.headers, default_headers())
                command = command._replace(headers=headers)
            send = partial(self.sender.send, caller=caller)
            self.run(connection, send, command, within=within)
            sending.sent([command.command_id])

    def many(
        self, requests: Sequence[SendRequest], connection: CallersConnection | None
    ) -> list[UUID]:
        if not requests:
            return []
        with observing_send(requests, "send_many") as sending:
            requests = self.apply_hook_to(requests, Positions.of(requests))
            bulk = BulkSend(requests)
            self.run(connection, self.sender.send_all, bulk, self._rules.check)
            ids = bulk.ids
            sending.sent(ids)
            return ids

    def apply_hook(self, request: SendRequest) -> SendRequest:
        return request if self._on_send is None else self._on_send(request)

    def apply_hook_to(
        self, requests: Sequence[SendRequest], positions: Positions
    ) -> Sequence[SendRequest]:
        if self._on_send is None:
            return requests
        with positions.named(requests, Exception) as given:
            return [*map(self._on_send, given)]

    def run(
        self,
        connection: CallersConnection | None,
        send: Callable[[Connection, *What, SendAttempt], T],
        *what: *What,
        within: float | None = None,
    ) -> T:
        """Sends in the caller's transaction, or as a call that may be repeated. `within`: see `use`
        of the connections."""
        number = None if connection is not None else new_call()
        return self._connections.use(
            connection,
            lambda c, again: send(c, *what, SendAttempt(number, again)),
            "producer",
            within,
        )
