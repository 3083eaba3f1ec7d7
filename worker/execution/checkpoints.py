"""What a handler keeps with its command for the executions after this one."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import psycopg

from cmdbus.data import Undecodable, decode, encode
from cmdbus.payloads.forms import Encoder
from cmdbus.worker.claims.claim import Claim, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.rejections import reason
from cmdbus.worker.execution.handler_transaction import (
    LeaseLostError,
    SettlementBlockedError,
    is_blocked,
)

Result = TypeVar("Result")


class RunStatement(Protocol):
    def __call__(self, name: str, work: Callable[[Connection, bool], Result], /) -> Result:
        """Calls `work` with a connection, and whether that is in the handler's transaction. Calls
        follow one another. `name`: what the handler has used."""
        ...


class Checkpoints:
    """Those of one claim's command."""

    #: This execution has kept one.
    has_saved = False

    def __init__(
        self,
        statements: ClaimStatements,
        claim: Claim,
        run: RunStatement,
        encoder: Encoder | None = None,
    ) -> None:
        self._statements = statements
        self._key = statements.key(claim)._asdict()
        self._run, self._encoder = run, encoder
        #: The latest, and whether it was read. The first claim of a command finds none.
        self._latest: object = None
        self._is_read = claim.token == 1

    def save(self, data: object) -> None:
        text = encode(data, what="checkpoint", encoder=self._encoder)
        self._run("context.checkpoint()", partial(self._save, text))

    @property
    def latest(self) -> object:
        return self._run("context.resumed", self._read)

    def _save(self, text: str, connection: Connection, within: bool) -> None:
        self._is_read = False
        values = {**self._key, "data": text, "locked": not within}
        try:
            saved = self._statements.value(connection, "save_checkpoint", **values)
        except psycopg.Error as error:
            if not is_blocked(error, self._statements.schema):
                raise
            raise SettlementBlockedError("CHECKPOINT_BLOCKED", reason(error)) from error
        if not saved:
            raise LeaseLostError(
                "the command was canceled, or another worker has its lease: nothing of this "
                "execution counts any longer"
            )
        self.has_saved = True

    def _read(self, connection: Connection, within: bool) -> object:
        if not self._is_read:
            rows = self._statements.rows(connection, "read_checkpoint", **self._key)
            self._latest = decode(rows[0][0]) if rows else None
            self._is_read = True
        if isinstance(self._latest, Undecodable):
            raise ValueError(f"the checkpoint cannot be decoded: {self._latest.reason}")
        return self._latest
