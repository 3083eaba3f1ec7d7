"""What a batch is created from: its requests, read in parts, and what it sends when it is over."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from uuid import UUID

from cmdbus.checks import check_iterable
from cmdbus.errors import BatchNotFoundError, DatabaseUnavailableError, InvalidOperationError
from cmdbus.producer.positions import Positions
from cmdbus.producer.requests import Outgoing, SendRequest

#: Commands that are checked and written together, whatever the size of the batch.
_PART = 1000


class Source:
    """The requests of a batch."""

    def __init__(
        self,
        requests: Iterable[SendRequest],
        seen: Callable[[Sequence[SendRequest], Positions], Sequence[SendRequest]],
    ) -> None:
        """`seen`: shows requests to the hook, and returns what it makes of them."""
        check_iterable("requests", requests, "SendRequests")
        self._is_iterator = iter(requests) is requests
        self._requests, self._seen = requests, seen
        self._begun = False

    def parts(self) -> Iterator[tuple[Sequence[SendRequest], Positions]]:
        if self._begun and self._is_iterator:
            raise DatabaseUnavailableError(
                "the connection ended while the batch was created, and its requests are an "
                "iterator, which cannot be read again: nothing was written, create it again"
            )
        self._begun = True
        total = len(self._requests) if isinstance(self._requests, list | tuple) else None
        requests, before = iter(self._requests), 0
        while part := list(islice(requests, _PART)):
            positions = Positions(range(before + 1, before + len(part) + 1), total)
            yield self._seen(part, positions), positions
            before += len(part)


def check_joined(batch_id: UUID, refusal: str | None, what: str) -> None:
    """Raises for a `refusal` of add_to_batch in the schema; `what` was to join the batch."""
    if refusal is None:
        return
    if refusal == "UNKNOWN":
        raise BatchNotFoundError(batch_id)
    why = "it is being canceled" if refusal == "CANCELING" else f"it is {refusal}"
    raise InvalidOperationError(f"batch {batch_id} takes no further {what}: {why}")


def encoded(command: Outgoing | None) -> str | None:
    """As the schema's create_batch reads it."""
    if command is None:
        return None
    fields = command._asdict()
    #: JSON as it is.
    own = {name: fields.pop(name) for name in ("data", "changes", "headers")}
    if isinstance(command.expires_at, float):
        fields["expires"] = fields.pop("expires_at")
    more = "".join(f', "{name}": {text}' for name, text in own.items() if text is not None)
    return f"{json.dumps(fields, default=str)[:-1]}{more}}}"
