"""Options that several commands share, and the database that they name together."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cmdbus.printable import one_line
from cmdbus.supervisor.cli.values import read_text

F = TypeVar("F", bound=Callable[..., Any])

#: Key of a context's meta: the file that the DSN was read from.
DSN_FROM = "cmdbus.dsn_from"
#: The settings file.
SETTINGS_FILE = "cmdbus.settings_file"
_VARIABLES = ("CMDBUS_DSN", "DATABASE_URL")
#: The option, variable or file that asks for the embedded server, or None.
_EMBEDDED = "cmdbus.embedded"
_NEAREST_FIRST = (
    ParameterSource.COMMANDLINE,
    ParameterSource.ENVIRONMENT,
    ParameterSource.DEFAULT_MAP,
)
_MAX_DSN_BYTES = 64 * 1024
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//)?[^\s'\"]*@[^\s'\"]*|\bpassword\s*=[^'\"]*")
#: A group without a sub-command is help and an error; before click 8.2 only help.
_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|\bpassword\s*=", re.IGNORECASE)


def parsed(
    parse: Callable[[Any], Any], *, can_be_off: bool = False
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Makes the value of the text, or of each text, that was given; a ValueError of `parse` says
    what is wrong with it. `can_be_off`: the text `off` is None."""

    def callback(context: click.Context, parameter: click.Parameter, text: Any) -> Any:
        if text is None or (can_be_off and text.lower() == "off"):
            return None
        try:
            return tuple(map(parse, text)) if isinstance(text, tuple) else parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", context, parameter) from None

    return callback


def database_options(command: F) -> F:
    """--dsn, --dsn-file, --embedded and --schema; the command gets `dsn`, `embedded` and
    `schema`. A DSN that is None means the embedded server."""
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
        help="PostgreSQL as a URI or keywords.",
    )
    embedded = click.option(
        "--embedded",
        is_flag=True,
        envvar="CMDBUS_EMBEDDED",
        show_envvar=True,
        is_eager=True,
        callback=_remember_embedded,
        help="Run a private PostgreSQL on this machine, for development.",
    )
    return dsn(file(embedded(schema(command))))


def _remember_file(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    context.meta["cmdbus.dsn_file"] = file


def _remember_embedded(context: click.Context, option: click.Parameter, embedded: bool) -> bool:
    context.meta[_EMBEDDED] = origin(context, option) if embedded else None
    return embedded


def _read_dsn(context: click.Context, option: click.Parameter, typed: str | None) -> str | None:
    dsn = _named_dsn(context, typed)
    embedded: str | None = context.meta[_EMBEDDED]
    if embedded is None or (dsn is not None and _is_nearer_than_embedded(context, option)):
        return dsn
    context.meta[DSN_FROM] = embedded
    return None


def _is_nearer_than_embedded(context: click.Context, option: click.Parameter) -> bool:
    by_file: str | None = context.meta.get(DSN_FROM)
    named = context.get_parameter_source("dsn_file" if by_file else "dsn")
    embedded = context.get_parameter_source("embedded")
    if named is embedded:
        raise click.UsageError(
            f"{context.meta[_EMBEDDED]} and {by_file or origin(context, option)} both name a "
            f"database: give one of them"
        )
    return _rank(named) < _rank(embedded)


def _named_dsn(context: click.Context, dsn: str | None) -> str | None:
    """The DSN of --dsn or of --dsn-file, of the one that is given nearer."""
    source = context.get_parameter_source("dsn")
    if source is ParameterSource.COMMANDLINE and dsn and _PASSWORD.search(dsn):
        click.echo(
            "Warning: a password in --dsn is visible in the process list; "
            "use --dsn-file, CMDBUS_DSN or a password file (~/.pgpass).",
            err=True,
        )
    file: Path | None = context.meta["cmdbus.dsn_file"]
    named = context.get_parameter_source("dsn_file")
    # DATABASE_URL is not only for cmdbus: it gives way to a variable that is.
    general = source is ParameterSource.ENVIRONMENT and not os.environ.get("CMDBUS_DSN")
    if file is not None and source is named and not general:
        pair = "CMDBUS_DSN and CMDBUS_DSN_FILE"
        pair = pair if source is ParameterSource.ENVIRONMENT else "--dsn and --dsn-file"
        raise click.UsageError(f"{pair} both name a database: give one of them")
    if file is None or _is_nearer(source, named):
        _refuse_empty(dsn)
        return dsn
    context.meta[DSN_FROM] = f"the file {file}"
    if re.match(r"\w+:/|.*\bpassword\s*=", str(file)):
        raise click.BadParameter("it takes the name of a file, not a DSN", param_hint="--dsn-file")
    try:
        with file.open("rb") as opened:
            text = read_text(opened, _MAX_DSN_BYTES).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "it is no UTF-8 text"
        raise click.BadParameter(f"cannot read {file}: {reason}", param_hint="--dsn-file") from None
    if not text:
        raise click.BadParameter(f"{file} is empty", param_hint="--dsn-file")
    if len(text.splitlines()) > 1:
        raise click.BadParameter(
            f"{file} has more than one line: it must hold one DSN, in one line",
            param_hint="--dsn-file",
        )
    return text


def _is_nearer(dsn: ParameterSource | None, file: ParameterSource | None) -> bool:
    """Whether the DSN itself was given, and nearer than the file's name was."""
    return dsn is ParameterSource.COMMANDLINE or _rank(dsn) < _rank(file)


def _rank(source: ParameterSource | None) -> int:
    """The smaller, the nearer; a default is farthest."""
    return _NEAREST_FIRST.index(source) if source in _NEAREST_FIRST else len(_NEAREST_FIRST)


def _refuse_empty(dsn: str | None) -> None:
    """A forgotten value must not install into the embedded server."""
    for name in _VARIABLES:
        if dsn is None and os.environ.get(name) == "":
            raise click.UsageError(f"{name} is set and empty: give it a DSN, or unset it")
    if dsn is not None and not dsn.strip():
        raise click.BadParameter("it is empty", param_hint="--dsn")


def origin(context: click.Context, parameter: click.Parameter) -> str:
    """Which option, variable or file the parameter's value comes from, or `default`."""
    match context.get_parameter_source(parameter.name or ""):
        case ParameterSource.COMMANDLINE:
            return parameter.opts[0]
        case ParameterSource.ENVIRONMENT:
            names = parameter.envvar if isinstance(parameter.envvar, list | tuple) else ()
            return next((n for n in names if os.environ.get(n)), str(parameter.envvar))
        case ParameterSource.DEFAULT_MAP:
            return str(context.meta[SETTINGS_FILE])
        case _:
            return "default"


class RedactingCommand(click.Command):
    """Hides a DSN that was typed in the wrong place, and names the source of a wrong value."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.MissingParameter as error:
            click.echo(f"Error: {one_line(_missing(error))}", err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            error_class = type(error) if type(error) is click.ClickException else click.UsageError
            redacted = error_class(one_line(_URL.sub("(a DSN)", _message(error))))
            if isinstance(redacted, click.UsageError) and isinstance(error, click.UsageError):
                redacted.ctx = error.ctx
            (error if isinstance(error, _HELP) else redacted).show()
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted.", err=True)
            sys.exit(1)


class RedactingGroup(RedactingCommand, click.Group):
    """A group of commands that does the same."""


def _missing(error: click.MissingParameter) -> str:
    """With the first of the examples that its help has."""
    assert error.param is not None and error.ctx is not None
    text = f"{error.param.human_readable_name} is missing"
    lines = (line.strip() for line in (error.ctx.command.help or "").splitlines())
    example = next((line for line in lines if line.startswith("cmdbus ")), None)
    return f"{text}, as in: {example}" if example else text


def _message(error: click.ClickException) -> str:
    """The message; about a value, with the variable or file that has it."""
    if not isinstance(error, click.BadParameter) or not error.param or not error.ctx:
        return error.format_message()
    if error.param_hint is not None:  # about another one, which knows where it is
        return error.format_message()
    text = origin(error.ctx, error.param)
    source = "" if text in error.param.opts else f" (from {text})"
    return f"Invalid value for {error.param.opts[0]}{source}: {error.message}"
