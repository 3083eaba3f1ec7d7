"""Commands that an action names one by one."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from cmdbus.checks import check_id, check_name, shown
from cmdbus.counting import count_of
from cmdbus.errors import CmdbusError, CommandNotFoundError, InvalidOperationError
from cmdbus.producer.progress import Progress
from cmdbus.web.actions.answers import FOR_GOOD, done
from cmdbus.web.actions.order import Order

#: Named one by one, at most.
MAX_NAMED = 1000
#: That one request changes by conditions, at most: that takes seconds.
MAX_MATCHED = 20_000
Named = tuple[str, UUID]


def named_commands(order: Order) -> list[Named] | None:
    """Domain and id of each, once; None if conditions say which."""
    found = order.target.get("commands")
    if found is None:
        return None
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_NAMED:
        raise ValueError(f"target.commands must be a list of 1 to {MAX_NAMED} commands")
    named = []
    for each in found:
        if not isinstance(each, list) or len(each) != 2:
            raise ValueError(f"a command is its domain and its id, not {shown(each)}")
        named.append((check_name("domain", each[0]), check_id("command_id", each[1])))
    return list(dict.fromkeys(named))


def carry_out(
    named: Sequence[Named],
    change: Callable[[str, UUID], object],
    participle: str,
    **answer: Any,
) -> dict[str, Any]:
    """What an action answers that changes each of these; those that it cannot change stay as they
    are. Raises the refusal if it can change none."""
    refusal = None
    with Progress(participle) as progress:
        for domain, command_id in named:
            try:
                change(domain, command_id)
                progress.count += 1
            except (CommandNotFoundError, InvalidOperationError) as error:
                refusal = refusal or error
    count = progress.count
    if refusal is not None and count == 0:
        raise refusal
    return done(
        counted(count, participle, len(named) - count, refusal),
        count=count,
        **{"undone": FOR_GOOD, **answer},
    )


def counted(count: int, participle: str, left: int = 0, refusal: CmdbusError | None = None) -> str:
    """`3 commands canceled; 2 not, one as ...`."""
    sentence = f"{count_of(count)} {participle}"
    if left:
        sentence += f"; {left} not: {refusal}" if left == 1 else f"; {left} not, one as {refusal}"
    return sentence
