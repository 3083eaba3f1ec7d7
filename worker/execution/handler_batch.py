"""What a handler can do with the batch of its command."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from uuid import UUID

from cmdbus.checks import check_iterable
from cmdbus.data import MAX_BYTES
from cmdbus.database.executor import Executor
from cmdbus.instrument_hooks import observing_send
from cmdbus.payloads.forms import Encoder
from cmdbus.producer.batch_requests import check_joined
from cmdbus.producer.bulk_send import BulkSend
from cmdbus.producer.requests import SendRequest, SendRules
from cmdbus.producer.sending import Sender
from cmdbus.producer.store import Store
from cmdbus.worker.claims.claim import Connection

_RULES = SendRules.of(None, MAX_BYTES)


class HandlerBatch:
    """`context.batch`."""

    def __init__(
        self,
        batch_id: UUID,
        statements: Executor,
        open_transaction: Callable[[], Connection],
        encoder: Encoder | None = None,
    ) -> None:
        self.batch_id = batch_id
        self._statements = statements
        self._open_transaction = open_transaction
        self._rules = _RULES if encoder is None else replace(_RULES, encoder=encoder)

    def add(self, requests: Iterable[SendRequest]) -> list[UUID]:
        given = list(check_iterable("requests", requests, "SendRequests"))
        if not given:
            return []
        with observing_send(given, "batch.add") as sending:
            bulk = BulkSend(given)
            self._write(bulk)
            ids = bulk.ids
            sending.sent(ids)
        return ids

    def _write(self, bulk: BulkSend) -> None:
        connection = self._open_transaction()
        # After an error the transaction stays usable.
        with connection.transaction():
            refusal = self._statements.value(
                connection,
                "add_to_batch",
                batch_id=self.batch_id,
                count=len(bulk.requests),
                within=True,
            )
            check_joined(self.batch_id, refusal, "commands")
            sender = _sender(self._statements.schema)
            sender.write(connection, bulk, self._rules.check, None, self.batch_id)


@cache
def _sender(schema: str) -> Sender:
    """Shared by all handlers of the process: it warns of a domain's depth once."""
    return Sender(Store(schema))
