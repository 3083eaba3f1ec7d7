"""What the listening session hears of bridges: messages that have come to their queues, as far as
PGMQ notifies of them, and commands that have come to domains out of which bridges move."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from itertools import starmap

#: Queues of which a session hears: each notification is compared with all of them.
_MAX_QUEUES = 1000


def channels_of(queue: str, spelled: str) -> Set[str]:
    """On which the trigger of `pgmq.enable_notify_insert` notifies: the name of the table, in lower
    case, or in versions after 1.13.0 that of the queue, as it was created."""
    return {f"pgmq.q_{name}.INSERT" for name in (queue, spelled)}


class BridgeWakes:
    """Written by the thread of the listening session, read by that of the rounds."""

    def __init__(
        self, subscribe: Callable[[Collection[str]], None], own_domains: Iterable[str] = ()
    ) -> None:
        """`subscribe` has the session hear these channels beside the schema's; `own_domains` are
        those of the node's workers."""
        self._subscribe = subscribe
        self._own_domains = frozenset(own_domains)
        self._domains: frozenset[str] = frozenset()
        self._channels: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        #: Channels and domains, since they were taken.
        self._heard: set[str] = set()

    def watch(self, queues: Iterable[tuple[str, str]], domains: Iterable[str]) -> None:
        """The queues, in lower case and as they are spelled, and the domains out of which there are
        bridges now."""
        self._domains = frozenset(domains)
        heard = sorted(queues)[:_MAX_QUEUES]
        self._channels = frozenset().union(*starmap(channels_of, heard))
        self._subscribe(self._channels)

    def hear(self, names: Iterable[str]) -> bool:
        """`names`: channels and domains of notifications. Whether any is of a bridge."""
        found = (self._domains | self._channels).intersection(names)
        with self._lock:
            self._heard |= found
        return bool(found)

    def take(self) -> Set[str]:
        """The channels and domains of which was heard since this was last called."""
        if not self._heard:
            return frozenset()
        with self._lock:
            heard, self._heard = self._heard, set()
        return heard

    def concern_bridges_alone(self, domains: Collection[str]) -> bool:
        """Whether no worker of this node need be woken for commands of these domains."""
        return self._domains.difference(self._own_domains).issuperset(domains)


def of_ready(notifications: Mapping[str, Collection[str]]) -> Set[str]:
    """The domains in which commands became ready; `notifications`: payloads by channel."""
    return {
        payload
        for channel, payloads in notifications.items()
        if channel.endswith("_ready")
        for payload in payloads
    }
