"""Whether what a supervisor takes of its host is free: its name, and the port of --http."""

import os
from collections.abc import Iterator

from cmdbus.errors import BoardError
from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.supervisor.pidfile import (
    NameTakenError,
    check_board_free,
    check_free,
    pidfile_path,
)
from cmdbus.supervisor.probe_socket import ListenError, bound
from cmdbus.supervisor.runtime import (
    board_path,
    check_makeable,
    check_runtime_directory,
    find_runtime_directory,
)


def check_host(settings: Settings) -> Iterator[Check]:
    """Keeps nothing. What a supervisor of this name has is only a warning: another one can
    start as soon as that has stopped."""
    directory = find_runtime_directory(settings.runtime_dir)
    taken = Finding.FATAL
    try:
        if os.path.lexists(directory):
            check_runtime_directory(directory)
        check_makeable(directory)
        check_free(pidfile_path(directory, settings.name), settings.name)
        check_board_free(board_path(directory, settings.name), settings.name)
        yield Check("name", Finding.OK, f"no supervisor named {settings.name!r} runs here")
    except NameTakenError as error:
        taken = Finding.WARNING
        yield Check("name", taken, str(error))
    except BoardError as error:
        yield Check("name", Finding.FATAL, str(error))
    if settings.http is None:
        return
    try:
        bound(*settings.http).close()
        yield Check("http", Finding.OK, "its address is free")
    except ListenError as error:
        yield Check("http", taken if error.in_use else Finding.FATAL, str(error))
