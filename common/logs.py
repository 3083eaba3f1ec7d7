"""Log lines on stderr: one event, one line, written at once.

No thread waits for their reader: while the pipe is full or its reader gone, lines are
dropped and counted, and the next one that gets through says how many.

An application may configure logging as it likes: the loggers of cmdbus stay enabled and keep
their handler, because an operator needs their lines. The application's handlers get those lines
in a thread of their own: they may wait, even for ever, for what they write to.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

from cmdbus.log_formats import RESERVED, SHOWN, JsonFormatter, TextFormatter
from cmdbus.named_lines import named
from cmdbus.stderr import STDERR, Stderr

_NAME = "cmdbus"
#: The logger of `context.log`, whose lines are the handler's own.
_OF_HANDLERS = "cmdbus.handler"
#: Seconds to wait for the lock of a handler that no thread holds for long.
_LOCK_SECONDS = 1.0
#: Lines that wait for the application's handlers; more are dropped there.
_MAX_WAITING = 1000


def set_up(format: str, level: str) -> None:
    """For this process, and those that it forks."""
    _open_standard_descriptors()
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[_OtherLoggers(handler)], level=level.upper(), force=True)
    protect()
    own = logging.getLogger(_NAME)
    assert isinstance(own, ProtectedLogger)
    own.keep(handler)
    own.setLevel(level.upper())
    # It reports each connection that is taken.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


def set_up_for_terminal(level: str) -> None:
    """For a command at a terminal: the messages alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper())


def protect() -> None:
    """Keep the loggers of cmdbus that exist by now enabled, whatever an application configures:
    dictConfig and fileConfig disable all existing loggers by default."""
    logging.getLogger(_NAME)
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if _is_own(name) and type(logger) is logging.Logger:
            logger.__class__ = ProtectedLogger


def _is_own(name: str) -> bool:
    return name == _NAME or name.startswith(f"{_NAME}.")


class ProtectedLogger(logging.Logger):
    """Cannot be disabled, does not lose the handler that it keeps, and raises nothing: the
    application's handlers, filters and record factory get its records, too, and an error of
    an application's must not end the thread that logs."""

    _kept: logging.Handler | None = None
    #: An error of the application's logging was reported; once in each process.
    _reported = False

    @property
    def disabled(self) -> bool:
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass

    def isEnabledFor(self, level: int) -> bool:
        """Whatever `logging.disable` was called with."""
        return level >= self.getEffectiveLevel()

    def makeRecord(
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        extra: Mapping[str, object] | None = None,
        sinfo: str | None = None,
    ) -> logging.LogRecord:
        try:
            return super().makeRecord(name, level, fn, lno, msg, args, exc_info, func, extra, sinfo)
        except Exception as error:
            _report_once(error)
        record = logging.LogRecord(name, level, fn, lno, msg, args, exc_info, func, sinfo)
        vars(record).update({k: v for k, v in (extra or {}).items() if k not in RESERVED})
        return record

    def handle(self, record: logging.LogRecord) -> None:
        try:
            super().handle(record)
        except Exception as error:
            _report_once(error)

    def callHandlers(self, record: logging.LogRecord) -> None:
        kept = _kept()
        if _app_handlers is None or kept is None or not self._has_app_handlers():
            super().callHandlers(record)
            return
        if record.levelno >= kept.level:
            kept.handle(record)
        _app_handlers.put(partial(super().callHandlers, record))

    def _has_app_handlers(self) -> bool:
        logger: logging.Logger | None = self
        while logger is not None and self.name != _OF_HANDLERS:
            if any(not isinstance(h, StderrHandler | _OtherLoggers) for h in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False

    def keep(self, handler: logging.Handler) -> None:
        """Replaces the handler that was kept before, and closes that one."""
        before, self._kept = self._kept, handler
        if before is not None:
            self.removeHandler(before)
            before.close()
        self.addHandler(handler)

    def removeHandler(self, hdlr: logging.Handler) -> None:
        if hdlr is not self._kept:
            super().removeHandler(hdlr)


def _kept() -> logging.Handler | None:
    own = logging.getLogger(_NAME)
    return own._kept if isinstance(own, ProtectedLogger) else None


def _report_once(error: Exception) -> None:
    """Says in the lines of cmdbus that the application's logging has failed."""
    kept = _kept()
    if ProtectedLogger._reported or kept is None:
        return
    ProtectedLogger._reported = True
    how = "hangs" if isinstance(error, _Hanging) else f"has failed ({type(error).__name__})"
    kept.handle(
        _own_record(
            logging.ERROR,
            f"a handler, filter or record factory of the application's logging {how}: lines of "
            f"cmdbus may be missing there",
        )
    )


class _Hanging(Exception):
    """Too many lines wait for the application's handlers."""


class _AppHandlers:
    """The thread that calls the application's handlers, started for the first line."""

    #: True in this thread alone.
    is_here = threading.local()

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._pid = os.getpid()
        #: One element for the thread that starts it.
        self._unstarted = [None]

    def put(self, line: Callable[[], object]) -> None:
        if self._pid != os.getpid():
            return  # A process that a handler has forked has only that one thread.
        if self._waiting.qsize() >= _MAX_WAITING:
            _report_once(_Hanging())
            return
        self._waiting.put(line)
        try:
            self._unstarted.pop()
        except IndexError:
            return
        threading.Thread(target=self._run, name="cmdbus-log", daemon=True).start()

    def flush(self, seconds: float) -> None:
        if not self._unstarted:
            done = threading.Event()
            self.put(done.set)
            done.wait(seconds)

    def _run(self) -> None:
        self.is_here.now = True
        while True:
            line = self._waiting.get()
            try:
                line()
            except Exception as error:
                _report_once(error)


#: None in a process that must start no thread.
_app_handlers: _AppHandlers | None = None


def let_handlers_wait() -> None:
    """From now on no thread of this process waits for the application's handlers."""
    global _app_handlers
    _app_handlers = _AppHandlers()


def flush(seconds: float) -> None:
    """Waits until the application's handlers have all lines, at most this long."""
    if _app_handlers is not None:
        _app_handlers.flush(seconds)


class _OtherLoggers(logging.Handler):
    """The root logger's handler. Records of cmdbus reach the same lines on a way of their own."""

    def __init__(self, lines: "StderrHandler") -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        if not _is_own(record.name):
            self._lines.handle(named(record))


def _open_standard_descriptors() -> None:
    """A closed one would give its number, and the log, to the next file that is opened."""
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


class StderrHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._stderr = Stderr()
        self._dropped = 0
        #: Only the beginning of the last line was written.
        self._torn = False

    def handle(self, record: logging.LogRecord) -> bool:
        """Waits for the lock, but not for a thread that does not release it."""
        passed = self.filter(record)  # since Python 3.12 perhaps another record
        locked = self.lock is not None and self.lock.acquire(timeout=_LOCK_SECONDS)
        try:
            if passed:
                self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        finally:
            if locked:
                self.release()
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(_AppHandlers.is_here, "now", False) and _is_own(record.name):
            return  # Written before it came to this thread.
        text = self._text(record)
        if self._dropped:
            notice = f"{self._dropped} lines of log were dropped before this one"
            text = f"{self.format(_own_record(logging.WARNING, notice))}\n{text}"
        try:
            self._write(text.encode("utf-8", "backslashreplace") + b"\n")
            self._dropped = 0
        except OSError:
            self._dropped += 1

    def close(self) -> None:
        self._stderr.close()
        super().close()

    def _text(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:
            why = f"a line of log cannot be formatted ({type(error).__name__}), see "
            instead = _own_record(logging.ERROR, f"{why}{record.pathname}:{record.lineno}")
            about = vars(record)
            vars(instead).update({name: about[name] for name in SHOWN if name in about})
            return self.format(instead)

    def _write(self, data: bytes) -> None:
        data = b"\n" + data if self._torn else data
        whole = len(data)
        while data:
            data = data[self._stderr.write(data) :]
            self._torn = 0 < len(data) < whole


def _own_record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, message, None, None)
