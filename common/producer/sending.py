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
from cmdbus.errors import DuplicateCommandError, QueueFullError, ShutdownError
from cmdbus.producer.depth import DepthAlarm, retry_after
from cmdbus.producer.ids import new_ids
from cmdbus.producer.requests import Outgoing, SendRequest
from cmdbus.producer.store import Answer, Connection, Store

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
        spare = new_ids(len(requests))
        #: Domain and id of each, and of those whose id the caller brought.
        self.keys: list[Key] = []
        self.brought: list[Key] = []
        for request, id_ in zip(requests, spare, strict=True):
            if not isinstance(request, SendRequest):
                raise ValueError(
                    f"send_many takes SendRequests, not {type(request).__name__}: "
                    f"SendRequest(domain, type, data)"
                )
            domain = check_name("domain", request.domain)
            if request.command_id is None:
                self.keys.append((domain, id_))
            else:
                self.keys.append((domain, check_id("command_id", request.command_id)))
                self.brought.append(self.keys[-1])
        self.counts = Counter(domain for domain, _ in self.keys)
        if len(set(self.brought)) < len(self.brought):
            (domain, command_id), _ = Counter(self.brought).most_common(1)[0]
            raise DuplicateCommandError(domain, [command_id], in_one_call=True)

    @property
    def ids(self) -> list[UUID]:
        return [command_id for _, command_id in self.keys]


class Sender:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._alarm = DepthAlarm()

    def send(self, connection: Connection, command: Outgoing, call: Call | None) -> None:
        number, again = call or (None, False)
        if call and again:
            self._store.wait_for_call(connection, call.number)
        answer = self._store.enqueue(connection, command, call=number, again=again)
        if answer.refusal == "duplicate":
            raise DuplicateCommandError(command.domain, [command.command_id])
        self._heed(command.domain, answer, 1)

    def send_all(
        self, connection: Connection, batch: Batch, check: Check, call: Call | None
    ) -> None:
        if call and call.again:
            self._store.wait_for_call(connection, call.number)
        # In a caller's transaction this is a savepoint.
        with connection.transaction():
            if call and self._landed(connection, batch, call):
                return
            admissions = self._store.admit(connection, batch.counts)
            for domain, answer, _ in admissions:
                self._heed(domain, answer, batch.counts[domain])
            self._identify(connection, batch, call)
            # Checked while they are copied, so that both processes work at once.
            checked = map(check, batch.requests, batch.ids)
            self._store.copy(connection, checked, admissions[0].now)

    def _landed(self, connection: Connection, batch: Batch, call: Call) -> bool:
        key = (batch.brought or batch.keys)[0]
        brought = bool(batch.brought)
        return self._store.landed(
            connection, key, brought=brought, call=call.number, again=call.again
        )

    def _identify(self, connection: Connection, batch: Batch, call: Call | None) -> None:
        """Takes the ids that the caller brought and, in the caller's transaction, also the
        bus's: he learns them before the commit, and may send one again."""
        number = call.number if call else new_call()
        made = set(batch.keys).difference(batch.brought) if call is None else ()
        refused = []
        for keys, brought in ((batch.brought, True), (list(made), False)):
            if keys:
                refused += self._store.identify(connection, keys, number, brought=brought)
        if refused:
            domain = refused[0][0]
            raise DuplicateCommandError(domain, [id_ for d, id_, _ in refused if d == domain])

    def _heed(self, domain: str, answer: Answer, count: int) -> None:
        """Raises what a domain's limits forbid, and warns of what they warn of."""
        if answer.refusal == "closed":
            raise ShutdownError(domain)
        if answer.refusal == "full":
            raise QueueFullError(
                domain,
                answer.depth or 0,
                answer.max_depth or 0,
                retry_after(answer.oldest_age or 0.0),
            )
        assert answer.refusal in (None, "repeated"), answer
        if answer.depth is None:
            return
        depth = answer.depth + count
        if answer.warn_depth and self._alarm.rings(domain, depth, answer.warn_depth):
            logger.warning(
                "domain %s has %s commands waiting, its warn_depth is %s: "
                "look whether its workers keep up",
                domain,
                depth,
                answer.warn_depth,
            )
