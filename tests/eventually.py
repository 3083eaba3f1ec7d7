"""Waiting in tests: for an event, with a bound; or for a state to last some time."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_POLL_S = 0.01
#: The pause between two calls in `eventually` is this share of the time waited so far, within
#: bounds: many a predicate is a query, or reads a whole board.
_PAUSE_SHARE = 0.1
_MAX_PAUSE_S = 0.05


def eventually(predicate: Callable[[], Value], timeout: float = 10.0) -> Value:
    """Call `predicate` until it is true and return its value; AssertionError with the last one."""
    start = time.monotonic()
    while not (value := predicate()):
        waited = time.monotonic() - start
        if waited > timeout:
            raise AssertionError(f"not within {timeout:g} s; at the end it was {value!r}")
        time.sleep(min(max(_POLL_S, waited * _PAUSE_SHARE), _MAX_PAUSE_S))
    return value


def stays(predicate: Callable[[], object], seconds: float) -> None:
    """Assert that `predicate` is true throughout the next seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert predicate(), f"not {seconds - (end - time.monotonic()):.2f} s later"
        time.sleep(_POLL_S)
