"""Options that several commands share, and what they mean together."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])

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
        envvar=["CMDBUS_DSN", "DATABASE_URL"],
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
        return dsn
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {file}: {error}", param_hint="--dsn-file") from None
    if not text:
        raise click.BadParameter(f"{file} is empty", param_hint="--dsn-file")
    return text
