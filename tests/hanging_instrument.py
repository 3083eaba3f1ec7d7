"""For an application under test: an instrument that hangs in the steward, as an exporter does whose
collector is away."""

import threading
import time
from pathlib import Path

from cmdbus import instruments
from cmdbus.instruments import EndedExecution, Instrument


class Hanging(Instrument):
    """At the first crash that a command is charged with, until the steward stops."""

    def __init__(self, sign: str) -> None:
        self._sign = Path(sign)

    def settled(self, ended: EndedExecution) -> None:
        if ended.code == "CRASHED" and not self._sign.exists():
            [steward] = [each for each in threading.enumerate() if each.name == "steward"]
            self._sign.touch()
            while steward.is_alive():
                time.sleep(0.02)
            time.sleep(0.1)  # A process that does not wait has exited by now.


def hang(sign: str) -> None:
    """Makes the file `sign` when it begins to hang."""
    instruments.install(Hanging(sign))
