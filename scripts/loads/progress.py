"""How far it is: a bar on a terminal, a line now and then elsewhere. On stderr."""

import sys
import time
from typing import NamedTuple

_WIDTH = 24
_LINE_EVERY_S = 2.0


class Sample(NamedTuple):
    sent: int
    ended: int
    restarts: int
    connections: int


class Progress:
    def __init__(self, commands: int) -> None:
        self._commands = commands
        self._terminal = sys.stderr.isatty()
        self._line_at = 0.0
        self._last: tuple[float, int] | None = None
        self._drawn = False

    def say(self, sentence: str) -> None:
        self._clear()
        print(sentence, file=sys.stderr, flush=True)

    def show(self, sample: Sample, *, last: bool = False) -> None:
        now = time.monotonic()
        if not (self._terminal or last) and now < self._line_at:
            return
        before, ended = self._last or (now, sample.ended)
        rate = (sample.ended - ended) / (now - before) if now > before else 0.0
        self._last = now, sample.ended
        self._line_at = now + _LINE_EVERY_S
        text = (
            f"{sample.ended:,} of {self._commands:,}, {rate:,.0f}/s, "
            f"in flight {max(0, sample.sent - sample.ended):,}, restarts {sample.restarts}, "
            f"connections {sample.connections}"
        )
        if self._terminal:
            done = min(_WIDTH, _WIDTH * sample.ended // max(1, self._commands))
            print(f"\r\x1b[K[{'#' * done}{'.' * (_WIDTH - done)}] {text}", end="", file=sys.stderr)
            sys.stderr.flush()
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
