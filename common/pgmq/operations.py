"""The operations of a PgmqClient: the statement of each, and what an error says about it."""

from functools import cache
from typing import NamedTuple

from cmdbus.database.statements import load, render, statement

_IDS, _MESSAGES = "pgmq_ids", "pgmq_messages"


class Operation(NamedTuple):
    #: The statement, or the call in the statement `template`; see pgmq.sql.
    name: str
    template: str | None = None
    #: Rights on the queue's table that it needs.
    rights: str = "select"
    #: A second try has the same result as the first, whether that was carried out or not.
    repeatable: bool = False

    @property
    def function(self) -> str:
        """The function of PGMQ that it calls."""
        return self.name.removeprefix("pgmq_").removesuffix("_at").removesuffix("_many")


SEND = Operation("pgmq_send", _IDS, "select, insert")
SEND_AT = SEND._replace(name="pgmq_send_at")
SEND_BATCH = SEND._replace(name="pgmq_send_batch")
SEND_BATCH_AT = SEND._replace(name="pgmq_send_batch_at")
READ = Operation("pgmq_read", _MESSAGES, "select, update")
POP = Operation("pgmq_pop", _MESSAGES, "select, update, delete")
POP_MANY = POP._replace(name="pgmq_pop_many")
SET_VT = Operation("pgmq_set_vt", _MESSAGES, "select, update", repeatable=True)
SET_VT_MANY = SET_VT._replace(name="pgmq_set_vt_many")
SET_VT_AT = SET_VT._replace(name="pgmq_set_vt_at")
DELETE = Operation("pgmq_delete", _IDS, "select, delete")
ARCHIVE = DELETE._replace(name="pgmq_archive")
QUEUES = Operation("pgmq_queues", repeatable=True)
METRICS = Operation("pgmq_metrics", repeatable=True)
METRICS_ALL = Operation("pgmq_metrics_all", repeatable=True)


@cache
def text_of(operation: Operation) -> bytes:
    if operation.template is None:
        return statement(operation.name, "cmdbus")
    call = load()[operation.name].strip()
    return render(operation.template, "cmdbus", call=call).encode()
