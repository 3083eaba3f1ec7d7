"""How checked commands are written.

    one:   enqueue                              one round trip
    many:  admit, identify, copy                one transaction
           find_full_key, take_unique_keys      if there are such keys

A refused send has written nothing, and a caller's transaction stays usable.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from itertools import repeat
from typing import NamedTuple
from uuid import UUID

import psycopg

from cmdbus.checks import check_key
from cmdbus.database.pool import Connection
from cmdbus.errors import DuplicateCommandError, QueueFullError, ShutdownError
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.depth import DepthAlarm, retry_after
from cmdbus.producer.ids import new_call
from cmdbus.producer.requests import EXPIRES_EARLY, Outgoing, SendRequest
from cmdbus.producer.store import AdmissionResult, Store
from cmdbus.uniqueness import EXISTING, REJECT, REPLACE

logger = logging.getLogger(__name__)

_IDLE = psycopg.pq.TransactionStatus.IDLE
Check = Callable[[SendRequest, UUID, Mapping[str, str] | None], Outgoing]


class SendAttempt(NamedTuple):
    #: That of the call; None in a caller's transaction.
    number: int | None
    repeated: bool = False


def _hint(on_conflict: str | None) -> str:
    """For the sender of a command whose unique key another one has."""
    begun = " and has begun, so it is not replaced" if on_conflict == REPLACE else ""
    return f"{begun}: --on-conflict existing (on_conflict='existing') returns its id"


def _check_no_pipeline(connection: Connection) -> None:
    """It has no COPY, and in autocommit mode a rollback there undoes what was sent before."""
    if getattr(connection, "_pipeline", None) is not None:
        raise ValueError(
            "the connection is in pipeline mode: send many commands before or after the pipeline"
        )


class Sender:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._alarm = DepthAlarm()

    def send(
        self,
        connection: Connection,
        command: Outgoing,
        attempt: SendAttempt,
        caller: int | None = None,
    ) -> UUID:
        """Returns the id of the command that there is. `caller`: the bus that waits for the
        command's end in a call."""
        self.wait_for_first_try(connection, attempt)
        if attempt.repeated and command.own:
            self._wait_for_id(connection, command, attempt)
        admission = self._store.enqueue(
            connection, command, call=attempt.number, again=attempt.repeated, caller=caller
        )
        return self._accepted(command, admission)

    def send_dated(self, connection: Connection, command: Outgoing) -> tuple[UUID, datetime | None]:
        """In the caller's transaction. The time is None if there was another command, whose id it
        returns."""
        admission, sent_at = self._store.enqueue_dated(connection, command)
        return self._accepted(command, admission), sent_at

    def _accepted(self, command: Outgoing, admission: AdmissionResult) -> UUID:
        if admission.refusal == "duplicate":
            raise DuplicateCommandError(command.domain, [command.command_id])
        if admission.refusal == "early":
            raise ValueError(EXPIRES_EARLY)
        if admission.holder is not None:
            if command.on_conflict == EXISTING:
                return admission.holder
            raise DuplicateCommandError(
                command.domain,
                [admission.holder],
                unique=command.unique_key,
                hint=_hint(command.on_conflict),
            )
        self.check_admission(command.domain, admission, 1, command.key)
        return command.command_id

    def send_all(
        self, connection: Connection, bulk: BulkSend, check: Check, attempt: SendAttempt
    ) -> None:
        self.wait_for_first_try(connection, attempt)
        # If the first try has got as far as that, it has sent these, or nothing.
        first = bulk.rest
        with self.transaction(connection):
            if (
                attempt.number is not None
                and first.requests
                and self._already_sent(connection, first, attempt)
            ):
                return
            self.write(connection, bulk, check, attempt.number)

    def transaction(self, connection: Connection) -> AbstractContextManager[object]:
        """In a caller's transaction a savepoint. If that has not begun, a statement begins it, as
        the driver would commit it at the end."""
        _check_no_pipeline(connection)
        if not connection.autocommit and connection.info.transaction_status is _IDLE:
            self._store.rows(connection, "ping")
        return connection.transaction()

    def write(
        self,
        connection: Connection,
        bulk: BulkSend,
        check: Check,
        call: int | None,
        batch_id: UUID | None = None,
    ) -> None:
        """Within a transaction, which is the caller's if there is no number of a `call`."""
        if bulk.uniques:
            self._take_unique_keys(connection, bulk, is_batch=batch_id is not None)
            bulk = bulk.rest
            if not bulk.requests:
                return
        domains, counts = list(bulk.counts), list(bulk.counts.values())
        admitted = self._store.rows(connection, "admit", domains=domains, counts=counts)
        for domain, *result, _ in admitted:
            self.check_admission(domain, AdmissionResult(*result), bulk.counts[domain])
        if "key" in bulk.seldom:
            self._check_keys(connection, bulk)
        self.identify(connection, bulk, call)
        # Checked while they are copied, so that both processes work at once.
        with bulk.positions.named(bulk.requests) as requests:
            commands = map(check, requests, bulk.ids, repeat(bulk.default_headers))
            self._store.copy(connection, commands, admitted[0][-1], batch_id, bulk.seldom)
        if bulk.changed:
            self._store.note_changes(connection, bulk.changed)

    def signal(
        self, connection: Connection, values: dict[str, object], attempt: SendAttempt
    ) -> tuple[str | None, str, AdmissionResult]:
        """Signals a process; returns the status in which it was found, and its domain."""
        self.wait_for_first_try(connection, attempt)
        call, again = attempt
        row = self._store.rows(connection, "signal_process", **values, call=call, again=again)[0]
        return row[0], row[1], AdmissionResult(*row[2:])

    def wait_for_first_try(self, connection: Connection, attempt: SendAttempt) -> None:
        if not attempt.repeated:
            return
        try:
            self._store.rows(connection, "wait_for_call", call=attempt.number)
        except psycopg.errors.LockNotAvailable:
            # It may take the server hours to notice that the client of a COPY is gone.
            if not connection.autocommit:
                connection.rollback()
            self._store.rows(connection, "end_call", call=attempt.number)
            self._store.rows(connection, "wait_for_call", call=attempt.number)
        if not connection.autocommit:
            connection.commit()

    def _wait_for_id(self, connection: Connection, command: Outgoing, attempt: SendAttempt) -> None:
        """The first try of one command with an id of the caller's takes no lock of its call.
        Taking the id waits for it; given back, because the repetition may be refused."""
        keys = {"domains": [command.domain], "command_ids": [command.command_id]}
        # At REPEATABLE READ, if the first try has committed.
        with (
            suppress(psycopg.errors.SerializationFailure),
            connection.transaction(force_rollback=True),
        ):
            self._store.rows(connection, "identify", **keys, call=attempt.number, brought=True)

    def _already_sent(self, connection: Connection, bulk: BulkSend, attempt: SendAttempt) -> bool:
        """Whether the other try of this call did it; waits until that has ended."""
        domain, command_id = (bulk.brought or bulk.sent)[0]
        values = {"domain": domain, "command_id": command_id, "brought": bool(bulk.brought)}
        call, again = attempt
        return bool(self._store.value(connection, "already_sent", **values, call=call, again=again))

    def identify(self, connection: Connection, bulk: BulkSend, call: int | None) -> None:
        """Takes the ids that the caller brought and, in the caller's transaction, also the
        bus's: the caller learns them before the commit, and may send one again."""
        made = set(bulk.sent).difference(bulk.brought) if call is None else ()
        call = new_call() if call is None else call
        refused = []
        for taken, brought in ((bulk.brought, True), (made, False)):
            if taken:
                domains, command_ids = map(list, zip(*taken, strict=True))
                values = {"domains": domains, "command_ids": command_ids, "call": call}
                refused += self._store.rows(connection, "identify", **values, brought=brought)
        if refused:
            domain = refused[0][0]
            error = DuplicateCommandError(domain, [id_ for d, id_, _ in refused if d == domain])
            bulk.positions.name_in(error, bulk.sent.index((domain, error.command_id)))
            raise error

    def _check_keys(self, connection: Connection, bulk: BulkSend) -> None:
        with bulk.positions.named(bulk.requests) as requests:
            counts = Counter(
                (request.domain, check_key("key", request.key))
                for request in requests
                if request.key is not None
            )
        domains, keys = map(list, zip(*counts, strict=True))
        values = {"domains": domains, "keys": keys, "counts": list(counts.values())}
        [found] = self._store.rows(connection, "find_full_key", **values)
        domain, key, depth, max_depth, oldest_age = found
        if key is not None:
            refused = AdmissionResult("key_full", depth, max_depth, None, oldest_age)
            self.check_admission(domain, refused, counts[domain, key], key)

    def _take_unique_keys(self, connection: Connection, bulk: BulkSend, is_batch: bool) -> None:
        """For all or none. Finds out which commands there are instead of new ones."""
        indexes = list(bulk.uniques)
        keys, conflicts, until = map(list, zip(*bulk.uniques.values(), strict=True))
        if is_batch and set(conflicts) != {REJECT}:
            raise ValueError(
                "a command of a batch takes no on_conflict but 'reject': the batch counts each of "
                "its commands as one of its own"
            )
        domains, ids = map(list, zip(*(bulk.sent[i] for i in indexes), strict=True))
        held = self._store.rows(
            connection,
            "take_unique_keys",
            domains=domains,
            unique_keys=keys,
            command_ids=ids,
            on_conflict=conflicts,
            unique_until=until,
        )
        holders = {indexes[position - 1]: holder for position, holder in held}
        refused = [i for i in holders if bulk.uniques[i].on_conflict != EXISTING]
        if refused:
            domain, unique = bulk.sent[refused[0]][0], bulk.uniques[refused[0]].unique_key
            ids = [holders[i] for i in refused if bulk.sent[i][0] == domain]
            hint = ": the batch was not created"
            if not is_batch:
                hint = _hint(bulk.uniques[refused[0]].on_conflict)
            error = DuplicateCommandError(domain, ids, unique=unique, hint=hint)
            bulk.positions.name_in(error, refused[0])
            raise error
        bulk.existing = holders

    def check_admission(
        self, domain: str, admission: AdmissionResult, count: int, key: str | None = None
    ) -> None:
        """Raises if a domain's limits forbid the send; warns if its depth does."""
        if admission.refusal == "closed":
            raise ShutdownError(domain)
        if admission.refusal in ("full", "key_full"):
            raise QueueFullError(
                domain,
                admission.depth or 0,
                admission.max_depth or 0,
                retry_after(admission.oldest_age or 0.0),
                count,
                key if admission.refusal == "key_full" else None,
            )
        assert admission.refusal in (None, "repeated"), admission
        if admission.depth is None:
            return
        depth = admission.depth + count
        if admission.warn_depth and self._alarm.rings(domain, depth, admission.warn_depth):
            logger.warning(
                "the depth of domain %s is %s, its warn_depth %s: look whether its workers keep up",
                domain,
                depth,
                admission.warn_depth,
            )
