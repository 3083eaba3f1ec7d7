"""Commands that are handled together."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cmdbus.command import Command


class Group(Protocol):
    """Commands of one domain that are handled in one transaction. Nothing of that is left if it
    fails: then each of them is handled by its own function."""

    def takes(self, command: Command, /) -> bool:
        """False: its own function handles it."""

    def handle(self, command: Command, /) -> None: ...
    def write(self) -> None:
        """After all have been handled."""


#: Called with commands that have different correlation ids, with the connection of a transaction,
#: and with the schema's name.
MakeGroup = Callable[[Sequence[Command], Any, str], Group]
