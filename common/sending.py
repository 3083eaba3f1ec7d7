"""How checked commands are written.

    one:   enqueue                              one round trip
    many:  admit, identify, copy                one transaction

What is refused has written nothing, and a caller's transaction stays usable.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from cmdbus.checks import check_id, check_name
from cmdbus.depth import DepthAlarm, retry_after
from cmdbus.errors import DuplicateCommandError, QueueFullError, ShutdownError
from cmdbus.ids import new_ids
from cmdbus.requests import Outgoing, SendRequest
from cmdbus.store import Answer, Connection, Store

logger = logging.getLogger(__name__)

Key = tuple[str, UUID]
Check = Callable[[SendRequest, UUID], Outgoing]


class Call(NamedTuple):
    """A send of the bus's own, which is repeated once if its connection dies."""

    number: int
    again: bool


def new_call() -> int:
    return secrets.randbits(63)


class Batch:
    """Requests to send together. What is known of them before they are checked one by one."""

    def __init__(self, requests: Sequence[SendRequest]) -> None:
        self.requests = requests
        self.counts = Counter(request.domain for request in requests)
        for domain in self.counts:
            check_name("domain", domain)
        #: As brought by the caller, or spare ones.
        self.ids = new_ids(len(requests))
        #: Keys that the caller brought.
        self.own: list[Key] = []
        for place, request in enumerate(requests):
            if request.command_id is not None:
                self.ids[place] = check_id("command_id", request.command_id)
                self.own.append((request.domain, self.ids[place]))
        if len(set(self.own)) < len(self.own):
            (domain, command_id), _ = Counter(self.own).most_common(1)[0]
            raise DuplicateCommandError(domain, [command_id])


class Sender:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._alarm = DepthAlarm()

    def send(self, connection: Connection, command: Outgoing, call: Call | None) -> None:
        number, again = call or (None, False)
        answer = self._store.enqueue(connection, command, call=number, again=again)
        if answer.refusal == "duplicate":
            raise DuplicateCommandError(command.domain, [command.command_id])
        self._heed(connection, command.domain, answer, 1)

    def send_all(
        self, connection: Connection, batch: Batch, check: Check, call: Call | None
    ) -> None:
        # In a caller's transaction this is a savepoint.
        with connection.transaction():
            if call and not batch.own and self._landed(connection, batch, call):
                return
            admissions = self._store.admit(connection, batch.counts)
            for domain, answer, _ in admissions:
                self._heed(connection, domain, answer, batch.counts[domain])
            if batch.own and not self._identified(connection, batch.own, call):
                return
            # Checked while they are copied, so that both processes work at once.
            checked = map(check, batch.requests, batch.ids)
            self._store.copy(connection, checked, admissions[0].now)

    def _landed(self, connection: Connection, batch: Batch, call: Call) -> bool:
        domain, command_id = batch.requests[0].domain, batch.ids[0]
        return self._store.landed(
            connection, domain, command_id, call=call.number, again=call.again
        )

    def _identified(self, connection: Connection, own: Sequence[Key], call: Call | None) -> bool:
        """Takes the callers' ids; False says that this call took them when it was first tried."""
        number = call.number if call else new_call()
        refused = self._store.identify(connection, own, number)
        duplicates = [(domain, id_) for domain, id_, refusal in refused if refusal == "duplicate"]
        if duplicates:
            domain = duplicates[0][0]
            raise DuplicateCommandError(domain, [id_ for d, id_ in duplicates if d == domain])
        return not refused

    def _heed(self, connection: Connection, domain: str, answer: Answer, count: int) -> None:
        """Raises what a domain's limits forbid, and warns of what they warn of."""
        if answer.refusal == "closed":
            raise ShutdownError(domain)
        if answer.depth is None:
            return
        if answer.refusal == "full":
            assert answer.max_depth is not None
            age = self._store.snapshot(connection, domain)["oldest_age"]
            raise QueueFullError(domain, answer.depth, answer.max_depth, retry_after(age))
        depth = answer.depth + count
        if answer.warn_depth and self._alarm.rings(domain, depth, answer.warn_depth):
            logger.warning(
                "domain %s has %s commands waiting, its warn_depth is %s: "
                "look whether its workers keep up",
                domain,
                depth,
                answer.warn_depth,
            )
