"""The settings of a supervisor: one row of a table for each. Its option, its environment variable,
its key in the settings file, its line of --check and its help are made from the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cmdbus.proc import usable_cpus
from cmdbus.supervisor.cli.options import database_options, parsed
from cmdbus.supervisor.cli.values import (
    address,
    domain,
    payload_size,
    poll_seconds,
    seconds,
    size,
    whole,
)
from cmdbus.supervisor.runtime import check_supervisor_name
from cmdbus.timeouts import Timeouts

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = Timeouts()
_MAX_PROCS, _MAX_THREADS, _MAX_JITTER_MS = 512, 128, 10


@dataclass(frozen=True, slots=True)
class Setting:
    #: As an option; without dashes it is the key, and in capitals the variable.
    name: str
    _: KW_ONLY
    help: str | None = None
    metavar: str | None = None
    #: Makes the value of a text; a ValueError says what is wrong with it.
    parse: Callable[[Any], Any] | None = None
    default: Any = None
    #: The default in the help, where it is not the text of it.
    show_default: str | None = None
    #: Whether `off` is a value, and the default: None.
    can_be_off: bool = False
    #: Of click.
    type: Any = None
    is_flag: bool = False
    multiple: bool = False
    #: The attribute of Settings, or of Timeouts behind "timeouts."; empty: like the key; None: the
    #: setting is not in Settings.
    attribute: str | None = ""
    #: Makes the attribute of the option's value.
    convert: Callable[[Any], Any] | None = None
    #: What --check shows where there is no value.
    without: str = "off"

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def target(self) -> str:
        return self.attribute or self.key

    def value(self, given: Mapping[str, Any]) -> Any:
        """The attribute's value, from the options' values by their keys."""
        value = given[self.key]
        return value if self.convert is None else self.convert(value)

    def option(self, command: F) -> F:
        more: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        if self.is_flag or self.multiple:
            more |= {"is_flag": self.is_flag, "multiple": self.multiple}
        if self.default is not None:
            more["default"] = self.default
        if self.type is not None:
            more["type"] = self.type
        if self.parse is not None:
            more["callback"] = parsed(self.parse, can_be_off=self.can_be_off)
        off = "off" if self.can_be_off else self.default is not None
        variable = f"CMDBUS_{self.key.upper()}"
        return click.option(
            self.name,
            envvar=variable,
            show_envvar=True,
            show_default=self.show_default or off,
            **more,
        )(command)


def _time(name: str, default: float, attribute: str, text: str) -> Setting:
    return Setting(
        name,
        help=text,
        metavar="TIME",
        parse=seconds,
        default=f"{default:g}",
        attribute=attribute,
    )


_APP = Setting(
    "--app",
    metavar="MODULE:REGISTRY",
    help="The handlers; the working directory is importable. Without one: a demo.",
    without="none; where no database is named either, the demo",
)
SETTINGS = (
    _APP,
    Setting(
        "--procs",
        parse=partial(whole, at_most=_MAX_PROCS),
        metavar="N",
        default=lambda: str(usable_cpus()),
        show_default="number of CPUs",
        help="Worker processes.",
    ),
    Setting(
        "--threads",
        parse=partial(whole, at_most=_MAX_THREADS),
        metavar="N",
        default="8",
        help="Threads, and database connections, in each.",
    ),
    Setting(
        "--domain",
        parse=domain,
        multiple=True,
        metavar="NAME",
        attribute="domains",
        convert=lambda names: tuple(dict.fromkeys(names)),
        help="Run this domain; repeatable. Without: all that the app handles.",
    ),
    _time(
        "--statement-timeout", _DEFAULTS.statement, "timeouts.statement", "For one SQL statement."
    ),
    _time("--pool-timeout", _DEFAULTS.pool, "timeouts.pool", "To wait for a connection."),
    _time(
        "--visibility-timeout",
        _DEFAULTS.lease,
        "timeouts.lease",
        "After it the commands of a worker that is gone are run again.",
    ),
    _time(
        "--thread-timeout", _DEFAULTS.thread, "timeouts.thread", "For one execution of a handler."
    ),
    _time(
        "--watchdog-timeout",
        _DEFAULTS.watchdog,
        "timeouts.watchdog",
        "After it a hung process is replaced.",
    ),
    Setting(
        "--poll-interval",
        parse=poll_seconds,
        metavar="TIME",
        show_default="60; 1 with --wake poll",
        help="Between two polls without a notification.",
    ),
    Setting(
        "--wake",
        type=click.Choice(["notify", "poll"]),
        default="notify",
        attribute="listen",
        convert=lambda wake: wake == "notify",
        help="poll: for a pooler that cannot LISTEN.",
    ),
    Setting(
        "--wake-jitter",
        parse=partial(whole, at_least=0, at_most=_MAX_JITTER_MS),
        default="0",
        metavar="MS",
        attribute="wake_jitter_ms",
        help="Random pause after a wake, against many nodes asking at once.",
    ),
    _time("--drain-timeout", 30.0, "drain_timeout", "For running commands to end at a stop."),
    Setting(
        "--claim-bytes",
        parse=payload_size,
        metavar="SIZE",
        default="8M",
        help="Payload that a process claims ahead of its threads; a larger command comes alone.",
    ),
    Setting(
        "--max-commands",
        parse=whole,
        can_be_off=True,
        metavar="N",
        help="Replace a process after this number of commands.",
    ),
    Setting(
        "--max-rss",
        parse=size,
        can_be_off=True,
        metavar="SIZE",
        attribute="max_rss_bytes",
        help="Replace a process that has more memory, for example 512M.",
    ),
    Setting(
        "--max-age",
        parse=seconds,
        can_be_off=True,
        metavar="TIME",
        help="Replace a process of this age.",
    ),
    Setting(
        "--http",
        parse=address,
        can_be_off=True,
        metavar="HOST:PORT",
        help="Serve /livez, /readyz, /metrics and /status; :PORT means 127.0.0.1.",
    ),
    Setting(
        "--name",
        parse=check_supervisor_name,
        metavar="NAME",
        default="cmdbus",
        help="Distinguishes the supervisors of one host.",
    ),
    Setting(
        "--runtime-dir",
        type=click.Path(path_type=Path, file_okay=False),
        parse=Path.absolute,
        metavar="DIR",
        without="the first usual place",
        help="For the board, the pidfile and stack dumps.",
    ),
    Setting("--log-format", type=click.Choice(["text", "json"]), default="text"),
    Setting(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
    ),
    Setting(
        "--check",
        is_flag=True,
        attribute=None,
        help="Only check whether it could start: exit 0 or 3.",
    ),
    Setting("--drain", is_flag=True, help="Exit 0 when nothing runs and nothing is claimable."),
)


def setting_options(command: F) -> F:
    """The options of all settings; those of the database follow the first."""
    for setting in reversed(SETTINGS[1:]):
        command = setting.option(command)
    return _APP.option(database_options(command))
