"""Warnings about long queues. Pure."""


class DepthAlarm:
    """Rings once when a queue reaches its warn_depth, and again only after it was clearly below."""

    #: Share of warn_depth under which the queue must fall before it may warn again.
    QUIET_BELOW = 0.8

    def __init__(self) -> None:
        self._loud: set[str] = set()

    def rings(self, domain: str, depth: int, warn_depth: int) -> bool:
        if depth >= warn_depth:
            rings = domain not in self._loud
            self._loud.add(domain)
            return rings
        if depth < warn_depth * self.QUIET_BELOW:
            self._loud.discard(domain)
        return False


def retry_after(oldest_age: float) -> float:
    """Seconds after which a full queue is worth another try: a tenth of what its oldest command
    has waited."""
    return min(max(oldest_age / 10, 1.0), 60.0)
