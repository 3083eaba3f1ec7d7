"""Requests that one call sends together."""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

from cmdbus.checks import check_id, check_name
from cmdbus.errors import DuplicateCommandError
from cmdbus.forwarding import default_headers
from cmdbus.producer.ids import new_ids
from cmdbus.producer.positions import Positions
from cmdbus.producer.requests import SELDOM, SendRequest
from cmdbus.uniqueness import Unique, check_unique

#: Domain and id of a command.
SentId = tuple[str, UUID]


class BulkSend:
    """Requests to send together, and their ids."""

    def __init__(
        self,
        requests: Sequence[SendRequest],
        ids: Sequence[UUID] = (),
        positions: Positions | None = None,
    ) -> None:
        """`ids`: those of commands that bring none, if they have been made before. `positions`:
        those of the requests, if they are not all of their call."""
        self.requests = requests
        self.positions = positions or Positions.of(requests)
        #: Domain and id of each command, and of each that brings an id.
        self.sent: list[SentId] = []
        self.brought: list[SentId] = []
        #: Commands that the hook has changed, with what it changed.
        self.changed: list[tuple[str, UUID, str]] = []
        try:
            self._list(ids or new_ids(len(requests)))
        except ValueError as error:
            self.positions.name_in(error, len(self.sent))
            raise
        self.counts = Counter(domain for domain, _ in self.sent)
        #: Headers that all of them get by default.
        self.default_headers = default_headers()
        #: Columns of SELDOM in which some have a value.
        self.seldom = [
            column
            for field, column in SELDOM.items()
            if any(map(attrgetter(field), requests))
            or (self.default_headers and field == "headers")
        ]
        if len(set(self.brought)) < len(self.brought):
            raise self._twice()
        #: How a command is unique, and the one that was there instead of it, by its index.
        self.uniques: dict[int, Unique] = {}
        self.existing: dict[int, UUID] = {}
        if "unique_key" in self.seldom:
            self._find_uniques()

    @property
    def ids(self) -> list[UUID]:
        ids = [command_id for _, command_id in self.sent]
        for index, command_id in self.existing.items():
            ids[index] = command_id
        return ids

    @property
    def rest(self) -> "BulkSend":
        """The requests for which there was no other command."""
        if not self.existing:
            return self
        rest = [i for i in range(len(self.sent)) if i not in self.existing]
        ids = [self.sent[i][1] for i in rest]
        return BulkSend([self.requests[i] for i in rest], ids, self.positions.chosen(rest))

    def _list(self, spare: Sequence[UUID]) -> None:
        for request, id_ in zip(self.requests, spare, strict=True):
            if not isinstance(request, SendRequest):
                raise ValueError(
                    f"requests must be SendRequests, not {type(request).__name__}: "
                    f"SendRequest(domain, type, data)"
                )
            domain = check_name("domain", request.domain)
            if request.command_id is None:
                self.sent.append((domain, id_))
            else:
                self.sent.append((domain, check_id("command_id", request.command_id)))
                self.brought.append(self.sent[-1])
            if request.changes is not None:
                self.changed.append((*self.sent[-1], request.changes))

    def _twice(self) -> DuplicateCommandError:
        [(sent, _)] = Counter(self.brought).most_common(1)
        error = DuplicateCommandError(sent[0], [sent[1]], in_one_call=True)
        first = self.sent.index(sent)
        self.positions.name_in(error, first, self.sent.index(sent, first + 1))
        return error

    def _find_uniques(self) -> None:
        with self.positions.named(self.requests) as requests:
            for index, request in enumerate(requests):
                if request.unique is not None:
                    unique = request.unique, request.on_conflict, request.unique_until
                    self.uniques[index] = check_unique(*unique)
        keys = Counter((self.sent[i][0], unique.unique_key) for i, unique in self.uniques.items())
        [((domain, key), times)] = keys.most_common(1)
        if times > 1:
            same = [
                i
                for i, unique in self.uniques.items()
                if (self.sent[i][0], unique.unique_key) == (domain, key)
            ]
            raise ValueError(
                f"{self.positions.text(*same[:2])} have the unique key {key!r} in domain "
                f"{domain!r}: give each a key of its own"
            )
