"""The operator's view of all nodes: what they have published, and how often they do."""

from cmdbus.checks import check_seconds, check_whole
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections
from cmdbus.producer.node_records import NodeCounters, NodeRecord
from cmdbus.producer.published_nodes import NodeRow, counters_of, node_record, stacks_of

#: Bounds of the number of a node.
_LEAST, _MOST = -(2**63), 2**63 - 1


class Nodes:
    _connections: Connections

    def fleet(self, *nodes: int, connection: CallersConnection | None = None) -> list[NodeRecord]:
        """Every node that has run within a day, or those of `nodes`, by name and host; those that
        are gone come last.

        Each record is what the node has published at its `published_at`: at most a minute ago,
        and two seconds ago while `watch_fleet` is called.
        """
        numbers = [check_whole("node", node, _LEAST, _MOST) for node in nodes] or None
        rows = self._connections.rows(connection, "read_fleet", "monitor", nodes=numbers)
        return [node_record(NodeRow._make(row)) for row in rows]

    def watch_fleet(self, seconds: float = 10.0) -> None:
        """Lets every node publish each two seconds, for the next `seconds`, from 5 to 60; call it
        again before they end to go on. A node that does not listen takes up to a minute to begin.
        """
        values = {"seconds": check_seconds("seconds", seconds)}
        self._connections.rows(None, "watch_fleet", "monitor", **values)

    def stacks(self, node: int, *, connection: CallersConnection | None = None) -> dict[int, str]:
        """Stacks of processes of `node`, by the numbers of their exits in its record; empty for
        an unknown one. It needs the rights of an operator."""
        number = check_whole("node", node, _LEAST, _MOST)
        rows = self._connections.rows(connection, "read_stacks", node=number)
        return stacks_of(rows[0][0]) if rows else {}

    def fleet_counters(self, *, connection: CallersConnection | None = None) -> list[NodeCounters]:
        """What the nodes that are not gone have executed since they started, by type."""
        rows = self._connections.rows(connection, "read_fleet_counters", "monitor")
        return [each for row in rows for each in counters_of(*row)]
