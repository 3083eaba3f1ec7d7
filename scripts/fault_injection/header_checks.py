"""The invariants of headers: a command keeps what it was sent with, and passes on what it must.
Pure."""

from collections.abc import Iterator, Mapping

from fault_injection.grouping import is_of_process, named
from fault_injection.history import History

#: What commands pass on to those that their handlers send, and to their replies.
_FORWARDED = ("traceparent", "tracestate", "tenant")
#: What a bridge adds, and replies pass on.
_OF_BRIDGE = ("pgmq_msg_id",)


def headers_are_kept(history: History) -> Iterator[str]:
    """Wherever the command is. Its data says with which it was sent."""
    for row in history.rows:
        if row.answers is not None or row.added_by is not None or is_of_process(row):
            continue
        headers = _without(row.headers, _OF_BRIDGE)
        if headers != (row.asked_headers or {}):
            yield f"{named(row)} has the headers {headers}, and was sent with {row.asked_headers}"
        if row.asked_correlation_id not in (None, row.correlation_id):
            yield f"{named(row)} has the correlation id {row.correlation_id}"


def headers_are_passed_on(history: History) -> Iterator[str]:
    """To replies, and to what a handler adds to its batch."""
    rows = {row.command_id: row for row in history.rows}
    for row in history.rows:
        sender = rows.get(row.answers or row.added_by or "")
        if sender is None:
            continue
        names = (*_FORWARDED, *_OF_BRIDGE) if row.answers is not None else _FORWARDED
        wanted = {name: text for name, text in sender.headers.items() if name in names}
        if row.headers != wanted:
            yield f"{named(row)} has the headers {row.headers}, and {named(sender)} had {wanted}"


def _without(headers: Mapping[str, str], names: tuple[str, ...]) -> Mapping[str, str]:
    return {name: text for name, text in headers.items() if name not in names}
