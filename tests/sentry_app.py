"""The application of a fleet that reports to Sentry, with the integrations that the SDK always has,
and a transport that sends nothing before it is flushed."""

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from cmdbus import Command, Context, HandlerRegistry, RetryPolicy
from cmdbus.sentry import CmdbusIntegration


class Files(Transport):
    """Appends events to a file of the process in its working directory."""

    _kept: tuple[Envelope, ...] = ()

    def capture_envelope(self, envelope: Envelope) -> None:
        self._kept += (envelope,)

    def flush(self, timeout: float, callback: Any = None) -> None:
        with Path(f"{os.getpid()}.events").open("a") as file:
            for envelope in self._kept:
                if (event := envelope.get_event()) is not None:
                    file.write(json.dumps(event) + "\n")
        self._kept = ()


sentry_sdk.init(
    dsn="http://key@localhost/1",
    transport=Files(),
    integrations=[CmdbusIntegration()],
    auto_enabling_integrations=False,  # would import all frameworks that tests need
)
registry = HandlerRegistry()


@registry.handler("shop", "Fail", retry=RetryPolicy(max_attempts=2, backoff=(0.01,)))
def fail(command: Command, context: Context) -> None:
    raise ValueError("no reason")


@registry.handler("shop", "Fork", retry=RetryPolicy(max_attempts=1))
def fork(command: Command, context: Context) -> None:
    """Its child leaves the handler with an exception, too."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    raise ValueError("child" if pid == 0 else "parent")
