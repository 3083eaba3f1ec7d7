"""Options that several commands share, and what they mean together."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])

_VARIABLES = ("CMDBUS_DSN", "DATABASE_URL")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//)?[^\s'\"]*@[^\s'\"]*|\bpassword\s*=[^'\"]*")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|\bpassword\s*=", re.IGNORECASE)


def database_options(command: F) -> F:
    """--dsn, --dsn-file and --schema; the command gets `dsn` (None: embedded) and `schema`."""
    schema = click.option(
        "--schema",
        default="cmdbus",
        show_default=True,
        envvar="CMDBUS_SCHEMA",
        show_envvar=True,
        help="Schema in the database.",
    )
    file = click.option(
        "--dsn-file",
        type=click.Path(path_type=Path),
        envvar="CMDBUS_DSN_FILE",
        show_envvar=True,
        expose_value=False,
        is_eager=True,
        callback=_remember_file,
        help="The DSN from a file, so that it is in no process list.",
    )
    dsn = click.option(
        "--dsn",
        envvar=_VARIABLES,
        show_envvar=True,
        callback=_read_dsn,
        help="PostgreSQL as a URI or keywords. Without one: an embedded server.",
    )
    return dsn(file(schema(command)))


def _remember_file(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    context.meta["cmdbus.dsn_file"] = file


def _read_dsn(context: click.Context, _: click.Parameter, dsn: str | None) -> str | None:
    given = context.get_parameter_source("dsn") is ParameterSource.COMMANDLINE
    if given and dsn and _PASSWORD.search(dsn):
        click.echo(
            "Warning: a password in --dsn is visible in the process list; "
            "use --dsn-file, CMDBUS_DSN or a password file (~/.pgpass).",
            err=True,
        )
    file: Path | None = context.meta["cmdbus.dsn_file"]
    if given or file is None:
        _refuse_empty(dsn)
        return dsn
    if re.match(r"\w+:/|.*\bpassword\s*=", str(file)):
        raise click.BadParameter("it takes the name of a file, not a DSN", param_hint="--dsn-file")
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise click.BadParameter(f"cannot read {file}: {reason}", param_hint="--dsn-file") from None
    if not text:
        raise click.BadParameter(f"{file} is empty", param_hint="--dsn-file")
    return text


def _refuse_empty(dsn: str | None) -> None:
    """A forgotten value must not install into the embedded server."""
    for name in _VARIABLES:
        if dsn is None and os.environ.get(name) == "":
            raise click.UsageError(f"{name} is set and empty: give it a DSN, or unset it")
    if dsn is not None and not dsn.strip():
        raise click.BadParameter("it is empty", param_hint="--dsn")


class RedactingGroup(click.Group):
    """Shows no DSN that was typed in the wrong place."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            shown = type(error) if type(error) is click.ClickException else click.UsageError
            told = shown(_URL.sub("(a DSN)", error.format_message()))
            if isinstance(told, click.UsageError) and isinstance(error, click.UsageError):
                told.ctx = error.ctx
            told.show()
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted.", err=True)
            sys.exit(1)
