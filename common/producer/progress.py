"""Calls that change many commands, some in each transaction: what is done when one fails stays."""

from types import TracebackType
from typing import Self

from cmdbus.counting import count_of


class Progress:
    """Counts; an exception that ends the call says in a note how much was done."""

    def __init__(self, participle: str, *, lasts: bool = True) -> None:
        """`participle` says what is done to commands; without `lasts` all is undone then."""
        self._participle, self._lasts = participle, lasts
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is not None and self.count and self._lasts:
            error.add_note(f"{count_of(self.count)} had been {self._participle} by then")
