"""The clocks as they were when cmdbus was imported, before any application.

A library that freezes time for tests (freezegun) replaces the functions of the module `time` and
their copies in every module, but not attributes of a class. Due times on the board must be those of
the system's clock, so each module of cmdbus takes `time` from here.
"""

import time as _time


class time:
    """The part of the module `time` that cmdbus uses."""

    #: On Linux only.
    CLOCK_BOOTTIME: int = getattr(_time, "CLOCK_BOOTTIME", -1)
    CLOCK_MONOTONIC = _time.CLOCK_MONOTONIC
    clock_gettime = staticmethod(_time.clock_gettime)
    clock_gettime_ns = staticmethod(_time.clock_gettime_ns)
    monotonic = staticmethod(_time.monotonic)
    monotonic_ns = staticmethod(_time.monotonic_ns)
    process_time = staticmethod(_time.process_time)
    sleep = staticmethod(_time.sleep)
    time_ns = staticmethod(_time.time_ns)


def current_sleep() -> object:
    """The module's `sleep` as it is now: an application may have replaced it."""
    return _time.sleep
