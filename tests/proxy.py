"""A network between a client and its server that a test can cut."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.proxy import Link, shut
from lab.proxy import Proxy as PlainProxy

#: The first byte of the message.
_NOTIFICATION = b"A"


class Proxy(PlainProxy):
    """The server's side of a connection stays open when the client's is gone, and learns nothing.

    `change` may make something else of what a client sends, as poolers do.
    """

    def __init__(self, dsn: str, change: Callable[[bytes], bytes] = bytes) -> None:
        self._change = change
        self._folder = tempfile.TemporaryDirectory(prefix="p")
        self._ended = threading.Event()
        #: Connections with a smaller number are silenced.
        self._muted = self._frozen = 0
        self._all_frozen = False
        super().__init__(dsn, Path(self._folder.name))

    def cut(self) -> None:
        """The clients' side of the present connections is gone."""
        for link in [*self._links]:
            shut(link.client)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nothing listens there meanwhile, and what was connected is gone."""
        aside = self.socket.rename(self.socket.with_name("away"))
        self.cut()
        yield
        aside.rename(self.socket)

    def mute(self) -> None:
        """The server carries out what it gets, and its replies do not arrive, but notifications
        do; on the present connections."""
        self._muted = self._accepted

    def freeze(self, new_ones: bool = False) -> None:
        """From now on nothing arrives on the present connections, which stay open."""
        self._frozen = self._accepted
        self._all_frozen = new_ones

    def on_request(self, link: Link, data: bytes) -> None:
        if not self._is_frozen(link):
            link.server.sendall(self._change(data))

    def on_reply(self, link: Link, data: bytes) -> None:
        is_heard = link.number >= self._muted or data.startswith(_NOTIFICATION)
        if is_heard and not self._is_frozen(link):
            link.client.sendall(data)

    def on_client_gone(self, link: Link) -> None:
        link.client.close()
        self._ended.wait()

    def _is_frozen(self, link: Link) -> bool:
        return self._all_frozen or link.number < self._frozen

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self.close()
        self._folder.cleanup()
