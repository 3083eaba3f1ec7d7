"""Threads that run the application, and make of what it returns the bytes of a response."""

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from traceback import extract_tb
from typing import Any

from cmdbus.web.http.heads import plain_response, response_head
from cmdbus.web.http.streams import close_body

logger = logging.getLogger(__name__)

#: Statuses of responses that have neither a body nor its length.
_WITHOUT_BODY = ("204", "304")
#: A WSGI application.
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Answer:
    """All bytes of a response, or its head and a body without an end."""

    def __init__(self, content: bytes, stream: Iterable[bytes] | None, keeps: bool) -> None:
        self.content, self.stream, self.keeps = content, stream, keeps


def answer(application: Application, environ: dict[str, Any], keeps: bool) -> Answer:
    """What the application returns; its defects are logged in one line."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
        started[:] = status, headers

    try:
        body = application(environ, start_response)
        status, fields = started
        ends = status[:3] in _WITHOUT_BODY or any(
            name.lower() == "content-length" for name, _ in fields
        )
        if not ends:
            return Answer(response_head(status, fields, keeps=False), body, False)
        try:
            content = b"".join(body)
        finally:
            close_body(body)
        return Answer(response_head(status, fields, keeps=keeps) + content, None, keeps)
    except Exception as error:
        logger.error("the page could not answer: %s", place_of(error))
        failed = HTTPStatus.INTERNAL_SERVER_ERROR
        return Answer(plain_response(failed, "the page failed: its log says where"), None, False)


def place_of(error: BaseException) -> str:
    """Its class and where it was raised, without its text, which may hold data."""
    frames = extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class Runner:
    """At most `threads`, started when they are needed."""

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()
        self._idle = 0

    def run(self, work: Callable[[], None]) -> None:
        """Later, in one of them; RuntimeError where not a single thread can be started."""
        with self._lock:
            starts = self._idle == 0 and self._threads < self._most
            self._threads += starts
            self._idle -= not starts and self._idle > 0
        if starts:
            try:
                threading.Thread(target=self._run, name="web", daemon=True).start()
            except RuntimeError:
                with self._lock:
                    self._threads -= 1
                    alone = self._threads == 0
                if alone:
                    raise
        self._work.put(work)

    def stop(self) -> None:
        """Without waiting for what runs."""
        for _ in range(self._most):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1
