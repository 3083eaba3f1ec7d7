"""Options that several commands share, and the database that they name together."""

import getpass
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cmdbus.checks import check_schema
from cmdbus.printable import one_line
from cmdbus.supervisor.cli.values import read_text

F = TypeVar("F", bound=Callable[..., Any])

#: Key of a context's meta: the file that the DSN was read from.
DSN_FROM = "cmdbus.dsn_from"
#: The settings file.
SETTINGS_FILE = "cmdbus.settings_file"
_VARIABLES = ("CMDBUS_DSN", "DATABASE_URL")
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
_IN_PROCESS_LIST = (
    "Warning: a password in --dsn is visible in the process list; "
    "use --dsn-file, CMDBUS_DSN or a password file (~/.pgpass)."
)


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


def option(
    *names: str,
    parse: Callable[[Any], Any] | None = None,
    can_be_off: bool = False,
    has_variable: bool = False,
    **more: Any,
) -> Callable[[F], F]:
    """click's option, with `parsed` as its callback. `has_variable`: the environment variable
    CMDBUS_ and the first of the names can give the value, too. A default is shown."""
    if parse is not None:
        more["callback"] = parsed(parse, can_be_off=can_be_off)
    if has_variable:
        more |= {"envvar": f"CMDBUS_{key(names[0]).upper()}", "show_envvar": True}
    shown = "off" if can_be_off else more.get("default") is not None
    return click.option(*names, **{"show_default": shown, **more})


time_option = partial(option, metavar="TIME")


def status_option(example: str) -> Callable[[F], F]:
    text = f"Only in this status, like {example}."
    return option("--status", metavar="STATUS", parse=str.upper, help=text)


def key(name: str) -> str:
    return name.removeprefix("--").replace("-", "_")


def stacked(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """All of them, in the order of the help."""

    def decorate(command: Any) -> Any:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


def _read_dsn(context: click.Context, option: click.Parameter, typed: str | None) -> str | None:
    """The DSN that is given nearest: itself, by its file, or as --embedded, which is None."""
    if typed is not None and not typed.strip():
        raise click.BadParameter("it is empty.", context, option)
    if typed and origin(context, option) == "--dsn" and _PASSWORD.search(typed):
        click.echo(_IN_PROCESS_LIST, err=True)
        # What reports errors or traces shows the program's arguments.
        sys.argv[1:] = [text.replace(typed, "***") for text in sys.argv[1:]]
    file: Path | None = context.params.pop("dsn_file")  # the command gets only the DSN
    given = {"embedded": context.params["embedded"], "dsn": typed, "dsn_file": file}
    sources = {name: context.get_parameter_source(name) for name in given if given[name]}
    # DATABASE_URL is not only for cmdbus: it gives way to a variable that is.
    if not os.environ.get("CMDBUS_DSN") and (
        sources.get("dsn") is sources.get("dsn_file") is ParameterSource.ENVIRONMENT
    ):
        del sources["dsn"]
    nearest = min(sources.values(), key=_NEAREST_FIRST.index, default=None)
    parameters = {p.name or "": p for p in context.command.params}
    named = [parameters[name] for name, source in sources.items() if source is nearest]
    if len(named) > 1:
        in_variable = nearest is ParameterSource.ENVIRONMENT
        names = [origin(context, each) if in_variable else each.opts[0] for each in named]
        raise click.UsageError(f"{' and '.join(names)} both name a database: give one of them")
    if named and named[0].name == "dsn_file":
        context.meta[DSN_FROM] = f"the file {file}"
        return str(parsed(_dsn_in)(context, named[0], file))
    for name in _VARIABLES:  # a forgotten value must not install into the embedded server
        if typed is None and os.environ.get(name) == "":
            raise click.UsageError(f"{name} is set and empty: give it a DSN, or unset it")
    if named and named[0].name == "embedded":
        context.meta[DSN_FROM] = origin(context, named[0])
        return None
    return typed


def _dsn_in(file: Path) -> str:
    """A ValueError says what is wrong with the file."""
    if re.match(r"\w+:/|.*\bpassword\s*=", str(file)):
        raise ValueError("it takes the name of a file, not a DSN")
    try:
        with file.open("rb") as opened:
            text = read_text(opened, _MAX_DSN_BYTES).strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot read {file}: {reason}") from None
    if not text:
        raise ValueError(f"{file} is empty")
    if len(text.splitlines()) > 1:
        raise ValueError(f"{file} has more than one line: it must hold one DSN, in one line")
    return text


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


#: The command gets `dsn`, `embedded` and `schema`. A DSN that is None means the embedded server.
database_options = stacked(
    option(
        "--dsn",
        envvar=_VARIABLES,
        show_envvar=True,
        callback=_read_dsn,
        help="PostgreSQL as a URI or keywords.",
    ),
    option(
        "--dsn-file",
        has_variable=True,
        type=click.Path(path_type=Path),
        is_eager=True,
        help="The DSN from a file, so that it is in no process list.",
    ),
    option(
        "--embedded",
        has_variable=True,
        is_flag=True,
        is_eager=True,
        help="Run a private PostgreSQL on this machine, for development.",
    ),
    option(
        "--schema",
        has_variable=True,
        parse=check_schema,
        default="cmdbus",
        help="Schema in the database.",
    ),
)


def login_name() -> str:
    """The user's name; behind sudo, the name of the user who called it."""
    if os.geteuid() == 0 and os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


operator_option = option(
    "--operator",
    has_variable=True,
    metavar="NAME",
    default=login_name,
    show_default="your login name",
    help="Name of the operator, for the audit trail.",
)


audit_options = stacked(
    option("--reason", metavar="TEXT", help="The reason, for the audit trail."), operator_option
)
page_options = stacked(
    option("--limit", type=click.IntRange(1), default=20),
    option("--offset", type=click.IntRange(0), default=0, show_default=False),
)


class RedactingCommand(click.Command):
    """Hides a DSN that was typed in the wrong place, and names the source of a wrong value."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if sys.stdin is None:  # It was closed before the start.
            sys.stdin = Path(os.devnull).open()  # noqa: SIM115
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            text = one_line(_URL.sub("(a DSN)", _message(error)))
            if not isinstance(error, click.UsageError) or isinstance(error, click.MissingParameter):
                click.UsageError(text).show()
            else:
                (error if isinstance(error, _HELP) else click.UsageError(text, error.ctx)).show()
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted.", err=True)
            sys.exit(1)


class RedactingGroup(RedactingCommand, click.Group):
    pass


def _missing(error: click.MissingParameter) -> str:
    """With the first of the examples that its help has."""
    assert error.param is not None and error.ctx is not None
    text = f"{error.param.human_readable_name} is missing"
    lines = (line.strip() for line in (error.ctx.command.help or "").splitlines())
    example = next((line for line in lines if line.startswith("cmdbus ")), None)
    return f"{text}, as in: {example}" if example else text


def _message(error: click.ClickException) -> str:
    """The message; about a value, with the variable or file that has it."""
    if isinstance(error, click.MissingParameter):
        return _missing(error)
    if not isinstance(error, click.BadParameter) or not error.param or not error.ctx:
        return error.format_message()
    text = origin(error.ctx, error.param)
    source = "" if text in error.param.opts else f" (from {text})"
    return f"Invalid value for {error.param.opts[0]}{source}: {error.message}"
