"""How the programs that bring servers and fleets of their own begin and end."""

import signal
import sys
from types import FrameType

import click

from cmdbus.errors import CmdbusError

_INTERRUPTED = 130


def run_script(command: click.Command, interrupted: str) -> None:
    """SIGTERM ends it like SIGINT: what it has started is ended, and `interrupted` printed."""
    name = command.name
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        command(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (CmdbusError, ValueError) as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted; {interrupted}", err=True)
        sys.exit(_INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
