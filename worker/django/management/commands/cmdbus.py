"""`manage.py cmdbus`: becomes a supervisor whose fleet runs on the database of the settings."""

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from cmdbus.django.buses import bus_in
from cmdbus.django.fleet import fleet_environment

_SUPERVISOR = [sys.executable, "-P", "-m", "cmdbus.supervisor.cli.supervise"]
_HELP = """\
import sys
from cmdbus.supervisor.cli.supervise import main
main(prog_name=sys.argv.pop(1))
"""


class Command(BaseCommand):
    help = (
        "Run the fleet of cmdbus on the database of the settings. This process becomes "
        "cmdbus-supervise, and takes all of its options, too. The app is the setting CMDBUS_APP "
        "or, without it, all tasks of the project. Examples: 'manage.py cmdbus', 'manage.py cmdbus "
        "--procs 4 --threads 8', 'manage.py cmdbus --check', 'manage.py cmdbus --reload'."
    )

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        """What it does not know is the supervisor's."""
        parser = super().create_parser(
            prog_name, subcommand, add_help=False, allow_abbrev=False, **options
        )

        def parse(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            known, known.supervisors = parser.parse_known_args(args, namespace)
            return known

        parser.parse_args = parse
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            help="The database of DATABASES, where backends in TASKS use several.",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        if {"-h", "--help"} & {*argv[2:]}:
            self.print_help(argv[0], argv[1])
        super().run_from_argv(argv)

    def print_help(self, prog_name: str, subcommand: str) -> NoReturn:
        """This command's own, then that of the supervisor."""
        parser = self.create_parser(prog_name, subcommand)
        parser.usage = f"{parser.prog} [--database ALIAS] [options of cmdbus-supervise]"
        print(parser.format_help(), flush=True)
        os.execv(sys.executable, [sys.executable, "-P", "-c", _HELP, parser.prog, "--help"])

    def handle(self, *_: Any, database: str | None, supervisors: list[str], **__: Any) -> NoReturn:
        """The environment is in no process list. The supervisor has neither Django nor a driver in
        memory, and answers signals and exits as by itself."""
        try:
            environment = fleet_environment(settings, bus_in(database), os.environ, sys.path)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execve(sys.executable, [*_SUPERVISOR, *supervisors], environment)
