"""What was sent, compared with what a test expects. Pure."""

import json
from collections.abc import Mapping, Sequence

from cmdbus.producer.records import CommandRecord

#: Commands that a message lists.
_MAX_LISTED = 30


def check_sent(
    records: Sequence[CommandRecord],
    domain: str | None,
    type: str | None,
    data: object,
    count: int | None,
) -> list[CommandRecord]:
    """An AssertionError if the wanted ones are not there."""
    found = [
        each
        for each in records
        if domain in (None, each.domain) and type in (None, each.type) and _contains(each, data)
    ]
    if found if count is None else len(found) == count:
        return found
    what = f"{domain or 'any domain'}/{type or 'any type'}"
    if data is not None:
        what += f" with {_text(data)}"
    wanted = "at least one" if count is None else str(count)
    raise AssertionError(
        f"expected {wanted} of {what}, and {len(found)} were sent. {_listed(records)}"
    )


def _contains(record: CommandRecord, wanted: object) -> bool:
    data = record.data
    if isinstance(wanted, Mapping) and isinstance(data, dict):
        return all(name in data and data[name] == value for name, value in wanted.items())
    return wanted is None or bool(data == wanted)


def _listed(records: Sequence[CommandRecord]) -> str:
    if not records:
        return (
            "Nothing at all was sent that this connection sees: to see what a transaction that is "
            "still open has sent, pass its connection="
        )
    lines = [
        f"  {each.domain}/{each.type} {_text(each.data)} {each.status}"
        for each in records[:_MAX_LISTED]
    ]
    if len(records) > _MAX_LISTED:
        lines.append(f"  and {len(records) - _MAX_LISTED} more")
    return "\n".join([f"All that was sent ({len(records)}):", *lines])


def _text(data: object) -> str:
    return json.dumps(data, default=str, ensure_ascii=False)
