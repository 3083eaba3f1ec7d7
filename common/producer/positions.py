"""Which request of a bulk an error is about."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from typing import NamedTuple, Self, TypeVar

from cmdbus.errors import SendRefusedError

T = TypeVar("T")


class Positions(NamedTuple):
    """The numbers of requests within their call, by which errors name them."""

    #: By index, counted from 1; empty where errors name no request.
    numbers: Sequence[int]
    #: Requests of the call; None while an iterator yields them.
    total: int | None = None
    noun: str = "request"

    @classmethod
    def of(cls, requests: Sequence[object], noun: str = "request") -> Self:
        total = len(requests)
        return cls(range(1, total + 1), total, noun)

    def chosen(self, indexes: Sequence[int]) -> Self:
        return self._replace(numbers=[self.numbers[i] for i in indexes] if self.numbers else ())

    def text(self, *indexes: int) -> str:
        """Such as "request 3 of 500"; empty where errors name none."""
        if not self.numbers:
            return ""
        numbers = " and ".join(str(self.numbers[i]) for i in indexes)
        plural = "s" if len(indexes) > 1 else ""
        return f"{self.noun}{plural} {numbers}{'' if self.total is None else f' of {self.total}'}"

    def name_in(self, error: Exception, *indexes: int) -> None:
        """Begins the error's sentence with them. Errors that are not of cmdbus get a note."""
        position = self.text(*indexes)
        if not position:
            return
        if isinstance(error, SendRefusedError):
            error.position = position
        elif type(error) is ValueError:
            error.args = (f"{position}: {error}",)
        else:
            error.add_note(position)

    @contextmanager
    def named(
        self, requests: Sequence[T], kind: type[Exception] = ValueError
    ) -> Iterator[Iterator[T]]:
        """An iterator over `requests`. An error of this kind names the one that was read last: how
        many are left says which that is, so that reading them costs nothing."""
        given = iter(requests)
        try:
            yield given
        except kind as error:
            self.name_in(error, len(requests) - length_hint(given) - 1)
            raise


#: Where errors name no request.
UNNAMED = Positions(())
