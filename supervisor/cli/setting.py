"""The settings of a supervisor: one row of a table for each. Its option, its environment variable,
its key in the settings file, its line of --check and its help are made from the row.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from cmdbus.proc import usable_cpus
from cmdbus.settings import MIN_POLL_SECONDS, Settings
from cmdbus.supervisor.cli.options import database_options, key, option, stacked
from cmdbus.supervisor.cli.values import (
    address,
    one_name,
    payload_size,
    priorities,
    seconds,
    size,
    threads,
    whole,
)
from cmdbus.supervisor.runtime import check_supervisor_name
from cmdbus.timeouts import Timeouts

#: It reads the setting CMDBUS_APP, too, which only a process with Django can.
_DJANGO_APP = "cmdbus.django.app:registry"
_MAX_PROCS, _MAX_THREADS, _MAX_JITTER_MS = 512, 128, 10


class Setting:
    def __init__(
        self,
        name: str,
        text: str | None = None,
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
        #: The class whose attribute `convert` makes from the option's value.
        self.owner = owner
        self.attribute = attribute or self.key
        self.convert = convert
        #: The text of --check where there is no value.
        self.without = without
        self.option = option(name, help=text, has_variable=True, **more)


_time = partial(Setting, parse=seconds, metavar="TIME")


def _timeout(name: str, attribute: str, text: str) -> Setting:
    default = f"{getattr(Timeouts(), attribute):g}"
    return _time(name, text, owner=Timeouts, attribute=attribute, default=default)


SETTINGS = (
    Setting(
        "--app",
        "The handlers; the working directory is importable. Without one: the setting CMDBUS_APP or "
        "all tasks of the Django project that DJANGO_SETTINGS_MODULE names, or a demo.",
        metavar="MODULE:REGISTRY",
        default=lambda: _DJANGO_APP if os.environ.get("DJANGO_SETTINGS_MODULE") else None,
        show_default=False,
        without="none; where no database is named either, the demo",
    ),
    Setting(
        "--procs",
        "Worker processes.",
        parse=partial(whole, at_most=_MAX_PROCS),
        metavar="N",
        default=lambda: str(usable_cpus()),
        show_default="number of CPUs",
    ),
    Setting(
        "--threads",
        "Threads, and database connections, in each; 2:32: as many as help, in these bounds.",
        parse=partial(threads, at_most=_MAX_THREADS),
        metavar="N[:MOST]",
        default="8",
    ),
    Setting(
        "--domain",
        "Run this domain; repeatable. Without: all that the app handles.",
        parse=partial(one_name, option="domain"),
        multiple=True,
        metavar="NAME",
        attribute="domains",
        convert=lambda names: tuple(dict.fromkeys(names)),
        without="all that the app handles",
    ),
    Setting(
        "--tag",
        "A tag of this fleet, which then runs types that need it; repeatable.",
        parse=partial(one_name, option="tag"),
        multiple=True,
        metavar="NAME",
        attribute="tags",
        convert=lambda names: tuple(sorted(set(names))),
        without="none",
    ),
    Setting(
        "--priority",
        "Claim only these priorities, like 0-4 or 3.",
        parse=priorities,
        metavar="FIRST-LAST",
        default="0-10",
        attribute="priorities",
    ),
    Setting(
        "--age-share",
        "Part of the claims that takes the oldest command, whatever its priority.",
        parse=partial(whole, at_least=0, at_most=100),
        metavar="PERCENT",
        default="0",
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
    _time(
        "--poll-interval",
        "Between two polls without a notification.",
        parse=partial(seconds, at_least=MIN_POLL_SECONDS),
        show_default="60; 1 with --wake poll",
    ),
    Setting(
        "--wake",
        "poll: for a pooler that cannot LISTEN.",
        type=click.Choice(["notify", "poll"]),
        default="notify",
        attribute="listen",
        convert=lambda wake: wake == "notify",
    ),
    Setting(
        "--wake-jitter",
        "Random pause after a wake, against many nodes asking at once.",
        parse=partial(whole, at_least=0, at_most=_MAX_JITTER_MS),
        default="0",
        metavar="MS",
        attribute="wake_jitter_ms",
    ),
    _time("--drain-timeout", "For running commands to end at a stop.", default="30"),
    Setting(
        "--claim-bytes",
        "Payload that a process claims ahead of its threads; a larger command comes alone.",
        parse=payload_size,
        metavar="SIZE",
        default="8M",
    ),
    Setting(
        "--max-commands",
        "Replace a process after this number of commands.",
        parse=whole,
        can_be_off=True,
        metavar="N",
    ),
    Setting(
        "--max-rss",
        "Replace a process that has more memory, for example 512M.",
        parse=size,
        can_be_off=True,
        metavar="SIZE",
        attribute="max_rss_bytes",
    ),
    _time("--max-age", "Replace a process of this age.", can_be_off=True),
    Setting(
        "--http",
        "Serve /livez, /readyz, /metrics and /status; :PORT means 127.0.0.1.",
        parse=address,
        can_be_off=True,
        metavar="HOST:PORT",
    ),
    Setting(
        "--name",
        "Distinguishes the supervisors of one host.",
        parse=check_supervisor_name,
        metavar="NAME",
        default="cmdbus",
    ),
    Setting(
        "--runtime-dir",
        "For the board, the pidfile and stack dumps; made with, or must have, mode 0700.",
        type=click.Path(path_type=Path, file_okay=False),
        parse=Path.absolute,
        metavar="DIR",
        without="the first usual place",
    ),
    Setting("--log-format", type=click.Choice(["text", "json"]), default="text"),
    Setting(
        "--log-level",
        "debug: also a line for each command that completes.",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
    ),
    Setting("--check", "Only check whether it could start: exit 0 or 3.", is_flag=True, owner=None),
    Setting("--drain", "Exit 0 when nothing runs and nothing is claimable.", is_flag=True),
    Setting(
        "--reload", "For development: reload when a Python file of the app changes.", is_flag=True
    ),
)


_first, *_others = [setting.option for setting in SETTINGS]
#: Those of the database follow the first.
setting_options = stacked(_first, database_options, *_others)
