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

#: Other ways to name a database, which the settings' takes the place of. Options win over it.
_OTHERS = ("CMDBUS_DSN_FILE", "CMDBUS_EMBEDDED")
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
    made = {name: value for name, value in given.items() if name not in _OTHERS}
    made |= {ENVIRONMENT_VARIABLE: module, "CMDBUS_DSN": dsn_of(bus.using), VARIABLE: bus.using}
    if backends():
        made["CMDBUS_SCHEMA"] = bus.schema
    # Then Django need not set it in each transaction.
    made.setdefault("PGTZ", str(wrapper_of(bus.using).timezone_name))
    made["PYTHONPATH"] = os.pathsep.join(_projects(path))
    return made


def _projects(path: Iterable[str]) -> list[str]:
    """Those that Python would not look into by itself."""
    known = [Path(sysconfig.get_path(name)) for name in _OF_PYTHON]
    absolute = [Path(entry or Path.cwd()).absolute() for entry in path]
    own = [
        str(entry)
        for entry in absolute
        if entry.is_dir() and not any(entry.is_relative_to(each) for each in known)
    ]
    return list(dict.fromkeys(own))
