"""The settings of a supervisor: from options, the environment and a file, and which of these."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cmdbus.checks import did_you_mean
from cmdbus.errors import CmdbusError
from cmdbus.selection import range_of
from cmdbus.settings import Settings
from cmdbus.supervisor.cli.options import DSN_FROM, SETTINGS_FILE, origin
from cmdbus.supervisor.cli.setting import SETTINGS
from cmdbus.supervisor.cli.values import read_text
from cmdbus.supervisor.host import address_text
from cmdbus.timeouts import Timeouts

#: The files of the working directory that may hold settings.
_OWN, _SHARED = "cmdbus.toml", "pyproject.toml"
_MAX_BYTES = 1024**2
_OR_MANAGE = "; `manage.py cmdbus` takes the database of Django's settings"
#: Of the environment variables that are read; and the rest of those that no option has.
_PREFIX, _NOT_SETTINGS = "CMDBUS_", {"PG_BIN", "RUN_AS"}
#: Settings of `cmdbus web`, which has the file and the environment in common with the supervisor.
WEB_SETTINGS = ("web_auth", "web_http", "web_role", "web_token_file")
#: The texts of --check for settings without a value.
_WITHOUT = {
    "dsn": "none; an embedded PostgreSQL",
    **{setting.name.removeprefix("--"): setting.without for setting in SETTINGS},
}
#: Seconds; what the poll interval is without an option depends on the way of waking.
_POLL_INTERVAL = {"notify": 60.0, "poll": 1.0}


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting to show, and where it comes from. Holds no secret."""

    name: str
    #: Numbers and flags as such, all else as text; None for off, and for no name.
    value: str | float | bool | None
    source: str

    def __str__(self) -> str:
        match self.value:
            case None:
                text = _WITHOUT[self.name]
            case bool():
                text = "yes" if self.value else "no"
            case float():
                text = f"{self.value:g}"
            case _:
                text = str(self.value)
        return f"{text}  ({self.source})"


def read(
    context: click.Context, options: Mapping[str, click.Parameter], *, are_all: bool = True
) -> dict[str, Any]:
    """The file's values of these options, by name; a UsageError says what is wrong with it.
    Unless they `are_all` options, ignores keys of others."""
    file, table = _found(context)
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        option = options.get(name)
        if isinstance(option, click.Option):
            if name in values:
                raise click.UsageError(f"{file} has {_dashed(name)!r} twice.", context)
            values[name] = _text(context, f"{file}: {key!r}", option, value)
        elif name not in WEB_SETTINGS and (are_all or _is_of_web(name, options)):
            names = sorted(map(_dashed, options))
            hint = did_you_mean(_dashed(name), names) or f"there are {', '.join(names)}."
            raise click.UsageError(f"{file} has {key!r}, which is no setting: {hint}", context)
    return values


def _is_of_web(name: str, options: Mapping[str, click.Parameter]) -> bool:
    """Whether it is for `cmdbus web`, whose options these are."""
    return name.startswith("web_") and options.keys() >= {*WEB_SETTINGS}


def configured(context: click.Context) -> Settings:
    """The settings from the context's options, which are checked one by one before."""
    given = _given(context)
    if given["app"] is not None and given["dsn"] is None and not given["embedded"]:
        raise CmdbusError(
            f"{given['app']} has no database: name it with --dsn-file, --dsn, CMDBUS_DSN or "
            f"DATABASE_URL; --embedded runs a private PostgreSQL on this machine, for development"
            f"{_OR_MANAGE * ('DJANGO_SETTINGS_MODULE' in os.environ)}"
        )

    def values(owner: type) -> dict[str, Any]:
        rows = [setting for setting in SETTINGS if setting.owner is owner]
        return {setting.attribute: setting.convert(given[setting.key]) for setting in rows}

    timeouts = _ladder(values(Timeouts))
    return Settings(timeouts=timeouts, dsn=given["dsn"], schema=given["schema"], **values(Settings))


def entries(context: click.Context) -> Iterator[Entry]:
    given = _given(context)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in given and name != "check":
            source = context.meta.get(DSN_FROM) if name == "dsn" else None
            value = _plain(name, given[name])
            yield Entry(_dashed(name), value, source or origin(context, parameter))


def mistyped_variables(context: click.Context) -> Iterator[str]:
    """A sentence for each variable of the environment that sets nothing and whose name is near to
    one that does. Others may be the application's."""
    names = {(each.name or "").upper() for each in context.command.params}
    names_set = [name.removeprefix(_PREFIX) for name in os.environ if name.startswith(_PREFIX)]
    others = {*_NOT_SETTINGS, *(name.upper() for name in WEB_SETTINGS)}
    for name in sorted(set(names_set) - names - others):
        # Compared without what they have in common, which makes all of them look near.
        if question := did_you_mean(name, names).replace("'", f"'{_PREFIX}", 1):
            yield f"the environment variable {_PREFIX}{name} sets nothing: {question}"


def _given(context: click.Context) -> dict[str, Any]:
    interval = context.params["poll_interval"] or _POLL_INTERVAL[context.params["wake"]]
    return {**context.params, "poll_interval": interval}


def _found(context: click.Context) -> tuple[str, dict[str, Any]]:
    """The file that has settings, and its settings; empty if no file has any."""
    found = [(name, table) for name in (_OWN, _SHARED) if (table := _table(name)) is not None]
    if len(found) > 1:
        raise click.UsageError(
            f"settings are in both {_OWN} and [tool.cmdbus] of {_SHARED}: keep them in one.",
            context,
        )
    for file, table in found:
        context.meta[SETTINGS_FILE] = file
        return file, table
    return "", {}


def _table(name: str) -> dict[str, Any] | None:
    """The file's settings; None if there is no such file, or no table for cmdbus in it."""
    try:
        with Path(name).open("rb") as file:
            document = tomllib.loads(read_text(file, _MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.UsageError(f"cannot read {name}: {error.strerror}.") from None
    except ValueError as error:
        raise click.UsageError(f"{name} is not valid TOML: {error}.") from None
    tools = document.get("tool", {})
    table = tools.get("cmdbus") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise click.UsageError(f"tool.cmdbus in {name} must be a table: [tool.cmdbus].")
    if name == _SHARED or (table is not None and document.keys() == {"tool"}):
        return table
    if table is not None:
        raise click.UsageError(f"{name} has settings in [tool.cmdbus] and above: keep one of them.")
    return document


def _text(context: click.Context, where: str, option: click.Option, value: object) -> Any:
    """The value as an option or the environment would give it."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.UsageError(f"{where} must be true or false.", context)
        return value
    if option.multiple:
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise click.UsageError(f"{where} must be a list of strings.", context)
        return items
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise click.UsageError(f"{where} must be a number or a string.", context)
    return str(value)


def _ladder(rungs: Mapping[str, Any]) -> Timeouts:
    """A CmdbusError names the options that do not form a ladder."""
    try:
        return Timeouts(**rungs)
    except ValueError as error:
        text = str(error)
        for setting in SETTINGS:
            if setting.owner is Timeouts:
                text = text.replace(f"{setting.attribute} timeout", setting.name)
        raise CmdbusError(text) from None


def _plain(name: str, value: object) -> str | float | bool | None:
    match value:
        case None | bool() | int() | float():
            return value
        case _ if name == "dsn":
            return "(not shown)"
        case (int(), int()):
            return range_of(value)
        case (str(host), int(port)):
            return address_text(host, port)
        case tuple():
            return " ".join(value) or None
        case _:
            return str(value)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
