"""The environment of a fleet that runs on a project: its database, its app, and where its modules
are."""

import os
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE
from django.core.exceptions import ImproperlyConfigured

from cmdbus.django.buses import VARIABLE, Bus, backends
from cmdbus.django.dsn import check_isolation, dsn_of, wrapper_of

#: Variables that name a database in other ways: left out, as the settings name it. An option of
#: the supervisor's still wins.
_OTHER_DATABASES = ("CMDBUS_DSN_FILE", "CMDBUS_EMBEDDED")
#: Directories that each Python imports from.
_OF_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")


def fleet_environment(
    settings: Any, bus: Bus, given: Mapping[str, str], path: Iterable[str]
) -> dict[str, str]:
    """`given`, and what a supervisor and its workers need to know; `path` is the one of a process
    that imports the project."""
    module = settings.SETTINGS_MODULE
    if not module:
        raise ImproperlyConfigured(
            "the settings are of no module (settings.configure()), so the workers could not read "
            "them: name a module with DJANGO_SETTINGS_MODULE"
        )
    check_isolation(bus.using)
    made = {name: value for name, value in given.items() if name not in _OTHER_DATABASES}
    made |= {ENVIRONMENT_VARIABLE: module, "CMDBUS_DSN": dsn_of(bus.using), VARIABLE: bus.using}
    if backends():
        made["CMDBUS_SCHEMA"] = bus.schema
    # In sessions with the time zone of the project, Django need not set it in each transaction.
    made.setdefault("PGTZ", str(wrapper_of(bus.using).timezone_name))
    made["PYTHONPATH"] = os.pathsep.join(_project_directories(path))
    return made


def _project_directories(path: Iterable[str]) -> list[str]:
    """The directories of `path` that Python does not import from by itself."""
    known = [Path(sysconfig.get_path(name)) for name in _OF_PYTHON]
    absolute = [Path(entry or Path.cwd()).absolute() for entry in path]
    own = [
        str(entry)
        for entry in absolute
        if entry.is_dir() and not any(entry.is_relative_to(each) for each in known)
    ]
    return list(dict.fromkeys(own))
