"""The settings of a supervisor: one row of a table for each. Its option, its environment variable,
its key in the settings file, its line of --check and its help are made from the row.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cmdbus.proc import usable_cpus
from cmdbus.settings import Settings
from cmdbus.supervisor.cli.options import database_options, key, option
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

_MAX_PROCS, _MAX_THREADS, _MAX_JITTER_MS = 512, 128, 10


class Setting:
    def __init__(
        self,
        name: str,
        *,
        owner: type[Settings] | type[Timeouts] | None = Settings,
        attribute: str = "",
        convert: Callable[[Any], Any] = lambda value: value,
        without: str = "off",
        **more: Any,
    ) -> None:
        #: As an option; without dashes it is the key, and in capitals the variable.
        self.name = name
        self.key = key(name)
        #: What has the attribute that is made from the option's value, by `convert`.
        self.owner = owner
        self.attribute = attribute or self.key
        self.convert = convert
        #: What --check shows where there is no value.
        self.without = without
        self.option = option(name, has_variable=True, **more)


def _timeout(name: str, attribute: str, text: str) -> Setting:
    return Setting(
        name,
        owner=Timeouts,
        attribute=attribute,
        parse=seconds,
        default=f"{getattr(Timeouts(), attribute):g}",
        metavar="TIME",
        help=text,
    )


SETTINGS = (
    Setting(
        "--app",
        metavar="MODULE:REGISTRY",
        help="The handlers; the working directory is importable. Without one: a demo.",
        without="none; where no database is named either, the demo",
    ),
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
    _timeout("--statement-timeout", "statement", "For one SQL statement."),
    _timeout("--pool-timeout", "pool", "To wait for a connection."),
    _timeout(
        "--visibility-timeout",
        "lease",
        "After it the commands of a worker that is gone are run again.",
    ),
    _timeout("--thread-timeout", "thread", "For one execution of a handler."),
    _timeout("--watchdog-timeout", "watchdog", "After it a hung process is replaced."),
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
    Setting(
        "--drain-timeout",
        parse=seconds,
        default="30",
        metavar="TIME",
        help="For running commands to end at a stop.",
    ),
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
        owner=None,
        help="Only check whether it could start: exit 0 or 3.",
    ),
    Setting("--drain", is_flag=True, help="Exit 0 when nothing runs and nothing is claimable."),
)


def setting_options(command: F) -> F:
    """The options of all settings; those of the database follow the first."""
    first, *others = [setting.option for setting in SETTINGS]
    for decorate in (*reversed(others), database_options, first):
        command = decorate(command)
    return command
