"""The method of `CommandBus` about the rights of its database role."""

from dataclasses import dataclass

from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role of the session may do; see `cmdbus init`."""

    #: The role, and where it has these rights.
    role: str
    database: str
    schema: str
    #: Sees data, results, messages and keys of commands, as operators and workers do.
    reads_data: bool
    #: Changes commands, domains, limits, breakers, schedules, batches and processes.
    operates: bool


class ReadingRights:
    _connections: Connections

    def rights(self, *, connection: CallersConnection | None = None) -> Rights:
        """What the database role of this bus may read and change."""
        role, database, reads_data, operates = self._connections.row(
            connection, "read_rights", "monitor"
        )
        return Rights(role, database, self._connections.schema, reads_data, operates)
