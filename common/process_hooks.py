"""Functions of an application that run once in each worker process: before it is ready, and after
its last command."""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cmdbus.callables import check_callable, name_of
from cmdbus.errors import AppError

logger = logging.getLogger(__name__)

#: Called without arguments.
Hook = Callable[[], Any]
H = TypeVar("H", bound=Hook)


class ProcessHooks:
    def __init__(self) -> None:
        self._on_start: list[Hook] = []
        self._on_stop: list[Hook] = []

    def add_on_start(self, function: H) -> H:
        check_callable(function, "the on_start function", arguments=())
        self._on_start.append(function)
        return function

    def add_on_stop(self, function: H) -> H:
        check_callable(function, "the on_stop function", arguments=())
        self._on_stop.append(function)
        return function

    @contextmanager
    def around(self) -> Iterator[None]:
        """The functions of the start come before the block, in order; those of the stop after it,
        in reverse, also when the block has failed."""
        for hook in self._on_start:
            _start(hook)
        try:
            yield
        finally:
            for hook in reversed(self._on_stop):
                _stop(hook)


def _start(hook: Hook) -> None:
    try:
        hook()
    except (Exception, SystemExit) as error:
        own = error.__traceback__ and error.__traceback__.tb_next
        trace = "".join(traceback.format_exception(error.with_traceback(own))).rstrip()
        raise AppError(f"the on_start function {name_of(hook)} failed:\n{trace}") from error


def _stop(hook: Hook) -> None:
    try:
        hook()
    except (Exception, SystemExit):
        logger.exception("the on_stop function %s failed: the stop goes on", name_of(hook))
