"""Draws headers. Without cmdbus, which not every producer knows."""

import random

#: Share of headers with a trace.
_TRACED = 0.5


def draw_headers(dice: random.Random) -> dict[str, str]:
    """Some that commands pass on, and one that they keep for themselves."""
    headers = {"tenant": f"t{dice.randrange(5)}", "note": "x" * dice.randint(0, 20)}
    if dice.random() < _TRACED:
        trace, span = dice.randbytes(16).hex(), dice.randbytes(8).hex()
        headers["traceparent"] = f"00-{trace}-{span}-01"
    return headers
