"""What a batch is created from: its requests, read in parts, and what it sends when it is over."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from cmdbus.errors import DatabaseUnavailableError
from cmdbus.producer.requests import Outgoing, SendRequest

#: Commands that are checked and written together, whatever the size of the batch.
_PART = 1000


class Source:
    """The requests of a batch."""

    def __init__(
        self, requests: Iterable[SendRequest], seen: Callable[[SendRequest], SendRequest]
    ) -> None:
        try:
            self._is_iterator = iter(requests) is requests
        except TypeError:
            raise ValueError(
                f"requests must be an iterable of SendRequests, not {type(requests).__name__}"
            ) from None
        self._requests, self._seen = requests, seen
        self._begun = False

    def parts(self) -> Iterator[list[SendRequest]]:
        if self._begun and self._is_iterator:
            raise DatabaseUnavailableError(
                "the connection ended while the batch was created, and its requests are an "
                "iterator, which cannot be read again: nothing was written, create it again"
            )
        self._begun = True
        requests = map(self._seen, self._requests)
        while part := list(islice(requests, _PART)):
            yield part


def encoded(command: Outgoing | None) -> str | None:
    """As the schema's create_batch reads it."""
    if command is None:
        return None
    fields = command._asdict()
    data = fields.pop("data")
    return f'{json.dumps(fields, default=str)[:-1]}, "data": {data}}}'
