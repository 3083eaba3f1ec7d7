"""Waiting in tests: for what is to happen, with a bound, never for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

_POLL_S = 0.01


def eventually(predicate: Callable[[], Value], timeout: float = 10.0) -> Value:
    """Call `predicate` until it is true and return its value; AssertionError with the last one."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s; at the end it was {value!r}")
        time.sleep(_POLL_S)
    return value
