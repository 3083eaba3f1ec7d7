"""Options for the audit trail: the operator, and the reason."""

import getpass
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def login_name() -> str:
    """The user's name; behind sudo, the name of the user who called it."""
    if os.geteuid() == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


def operator_option(command: F) -> F:
    return click.option(
        "--operator",
        metavar="NAME",
        default=login_name,
        show_default="your login name",
        envvar="CMDBUS_OPERATOR",
        show_envvar=True,
        help="Name of the operator, for the audit trail.",
    )(command)


reason_option = click.option("--reason", metavar="TEXT", help="The reason, for the audit trail.")
