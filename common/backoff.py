"""Pauses between attempts. Pure."""


class Backoff:
    """Seconds that double from the first pause to the longest one."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def pause(self) -> float:
        """Seconds to wait now; the following pause is twice as long."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause

    def reset(self) -> None:
        self._next = self._first
