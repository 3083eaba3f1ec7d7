"""The channels that a listening session hears beside those of the schema: each has a name that
other software gave it, and they change while the session listens."""

from collections.abc import Collection

from cmdbus.database.statements import render

#: Channels in one statement: a session has a few seconds for that.
_MAX_AT_ONCE = 100


class Subscriptions:
    def __init__(self, schema: str) -> None:
        self._schema = schema
        #: What the session is to hear. Written by any thread, always as a whole.
        self.wanted: Collection[str] = frozenset()
        self._heard: set[str] = set()
        #: Those of the statement that the session executes.
        self._new: list[str] = []

    def forget(self) -> None:
        """A new session hears none."""
        self._heard, self._new = set(), []

    def next_statement(self) -> bytes | None:
        """What the session is to execute next; None if it hears all that it is to hear."""
        wanted = frozenset(self.wanted)
        if wanted == self._heard:
            return None
        old = sorted(self._heard - wanted)[:_MAX_AT_ONCE]
        self._new = sorted(wanted - self._heard)[: _MAX_AT_ONCE - len(old)]
        self._heard = self._heard.difference(old).union(self._new)
        statements = [self._statement("unlisten_one", name) for name in old]
        statements += [self._statement("listen_to_one", name) for name in self._new]
        return "".join(statements).encode()

    def executed(self) -> list[str]:
        """What the session hears from now on, and did not before."""
        new, self._new = self._new, []
        return new

    def _statement(self, name: str, other_channel: str) -> str:
        quoted = other_channel.replace('"', '""')
        return render(name, self._schema, other_channel=f'"{quoted}"')
