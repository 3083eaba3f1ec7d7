"""Which commands a worker selects: by the tags of their types, and by priority. Pure."""

from collections.abc import Collection, Mapping, Sequence

from cmdbus.checks import check_name, check_whole, shown
from cmdbus.priorities import HIGHEST, LOWEST

#: The first and the last one.
ALL_PRIORITIES = (HIGHEST, LOWEST)
#: Types named in a sentence; the others are counted.
_NAMED = 3


def check_tags(what: str, tags: Collection[str]) -> frozenset[str]:
    if not isinstance(tags, list | tuple | set | frozenset):
        raise ValueError(
            f"{what} must be a set or list of names, like {{'gpu'}}, not {shown(tags)}"
        )
    return frozenset(check_name(f"each of the {what}", tag) for tag in tags)


def check_priorities(priorities: tuple[int, int]) -> tuple[int, int]:
    """The first and the last one that a worker claims."""
    if not isinstance(priorities, list | tuple) or len(priorities) != 2:
        raise ValueError(
            f"priorities must be the first and the last one, like (0, 4), not {shown(priorities)}"
        )
    first, last = (check_whole("each of priorities", each, *ALL_PRIORITIES) for each in priorities)
    if first > last:
        raise ValueError(f"priorities must begin with the lower number, not be {first} to {last}")
    return first, last


def range_of(priorities: Sequence[int]) -> str:
    """`0-4`, or `3`."""
    first, last = priorities
    return f"{first}-{last}" if first < last else str(first)


def priorities_text(priorities: Sequence[int]) -> str:
    """`priority 3`, or `priorities 3, 4 and 5`."""
    if len(priorities) == 1:
        return f"priority {priorities[0]}"
    return f"priorities {', '.join(map(str, priorities[:-1]))} and {priorities[-1]}"


def listed(tags: Sequence[str]) -> str:
    """`the tag gpu`, or `the tags eu and gpu`."""
    if len(tags) == 1:
        return f"the tag {tags[0]}"
    return f"the tags {', '.join(tags[:-1])} and {tags[-1]}"


def needs(types: Mapping[str, Sequence[str]]) -> str:
    """The tags that types need, given by "domain type"."""
    return _first_of(
        [f"{name.replace(' ', '/')} needs {listed(tags)}" for name, tags in types.items()]
    )


def types_text(names: Sequence[str]) -> str:
    """Types, given as "domain type"."""
    return _first_of([name.replace(" ", "/") for name in names])


def _first_of(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more
