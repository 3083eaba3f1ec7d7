"""The house rules that a reader may rely on, held by reading the source."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import tomllib
from enum import Enum
from functools import cache
from pathlib import Path
from typing import get_origin
from uuid import UUID

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "cmdbus": "common",
    "cmdbus.worker": "worker",
    "cmdbus.supervisor": "supervisor",
    "cmdbus.django": "worker/django",
    "cmdbus.prometheus": "worker/prometheus",
    "cmdbus.testing": "worker/testing",
}
#: The floor plan: each room, and the rooms that it may import.
SHARED = ["cmdbus"]
FLOOR_PLAN = {
    "cmdbus.payloads": [],
    "cmdbus": ["cmdbus.payloads"],
    "cmdbus.board": SHARED,
    "cmdbus.database": SHARED,
    "cmdbus.integrations": [*SHARED, "cmdbus.database"],
    "cmdbus.producer": [
        *[*SHARED, "cmdbus.payloads", "cmdbus.database", "cmdbus.integrations"],
    ],
}
COMMON = [*FLOOR_PLAN]
FLOOR_PLAN["cmdbus.processes"] = [
    *[*SHARED, "cmdbus.payloads", "cmdbus.database", "cmdbus.producer"],
]
FLOOR_PLAN["cmdbus.pgmq"] = [
    *[*SHARED, "cmdbus.payloads", "cmdbus.database", "cmdbus.integrations", "cmdbus.producer"],
]
FLOOR_PLAN["cmdbus.otel"] = SHARED
CLAIMS, EXECUTION = "cmdbus.worker.claims", "cmdbus.worker.execution"
BREAKERS = "cmdbus.worker.breakers"
INTEGRATIONS = "cmdbus.worker.integrations"
WEB = [*SHARED, "cmdbus.producer"]
FLOOR_PLAN |= {
    "cmdbus.web.http": SHARED,
    "cmdbus.web.security": [*SHARED, "cmdbus.web.http"],
    "cmdbus.web": [*WEB, "cmdbus.web.http", "cmdbus.web.security"],
    "cmdbus.web.actions": [*WEB, "cmdbus.web"],
    "cmdbus.web.views": [*WEB, "cmdbus.web"],
}
WAITING, PROBES = "cmdbus.worker.waiting", "cmdbus.worker.probes"
STEWARD, PIPELINE = "cmdbus.worker.steward", "cmdbus.worker.pipeline"
FLOOR_PLAN |= {
    "cmdbus.asynchronous": [
        *[*SHARED, "cmdbus.database", "cmdbus.integrations", "cmdbus.payloads", "cmdbus.producer"],
    ],
    "cmdbus.embedded": [*SHARED, "cmdbus.database"],
    "cmdbus.sentry": SHARED,
    CLAIMS: [*SHARED, "cmdbus.payloads", "cmdbus.board", "cmdbus.database"],
    BREAKERS: [*SHARED, "cmdbus.board", "cmdbus.database", CLAIMS],
    INTEGRATIONS: SHARED,
    EXECUTION: [*COMMON, CLAIMS, BREAKERS, INTEGRATIONS],
    WAITING: [*SHARED, "cmdbus.board", "cmdbus.database", CLAIMS],
    PROBES: [*COMMON, CLAIMS],
    STEWARD: [*COMMON, CLAIMS, WAITING],
    PIPELINE: [*SHARED, "cmdbus.board", CLAIMS, BREAKERS, EXECUTION, WAITING],
    "cmdbus.worker": [*COMMON, CLAIMS, BREAKERS, EXECUTION, WAITING, STEWARD, PIPELINE],
    "cmdbus.worker.boot": [
        *[*COMMON, CLAIMS, PROBES, "cmdbus.worker", STEWARD],
    ],
    "cmdbus.django": [
        *[*COMMON, CLAIMS, EXECUTION, "cmdbus.worker.boot"],
        *["cmdbus.web", "cmdbus.web.security"],
    ],
    "cmdbus.django.management": [],
    "cmdbus.django.management.commands": ["cmdbus.django"],
    "cmdbus.testing": [
        *[*COMMON, "cmdbus.embedded", "cmdbus.worker"],
        *[CLAIMS, BREAKERS, EXECUTION, PIPELINE, STEWARD, WAITING],
    ],
    "cmdbus.prometheus": [*COMMON, "cmdbus.asynchronous", "cmdbus.worker", PROBES],
    "cmdbus.supervisor": [*SHARED, "cmdbus.board"],
    "cmdbus.supervisor.cli": [*SHARED, "cmdbus.board", "cmdbus.supervisor"],
    "cmdbus.worker.demo": [
        *[*COMMON, "cmdbus.embedded", "cmdbus.supervisor", "cmdbus.supervisor.cli"],
    ],
}
#: Rooms that may import psycopg, and the modules that do so for type checkers.
DATABASE_ROOMS = {
    *["cmdbus.asynchronous", "cmdbus.context", "cmdbus.surroundings"],
    *["cmdbus.database", "cmdbus.integrations"],
    *["cmdbus.producer", "cmdbus.processes", "cmdbus.pgmq"],
    *[room for room in FLOOR_PLAN if room.startswith(("cmdbus.worker", "cmdbus.testing"))],
    *["cmdbus.django", "cmdbus.prometheus"],
}
#: Rooms that are imported only inside functions: in a child of the supervisor or in a sub-command;
#: and by the page, which gets its views and actions as arguments.
IN_CHILDREN = {
    "cmdbus.web": ["cmdbus.web.actions", "cmdbus.web.views"],
    "cmdbus.supervisor": [
        *["cmdbus.database", "cmdbus.embedded", "cmdbus.worker"],
        *["cmdbus.worker.boot", PROBES],
    ],
    "cmdbus.supervisor.cli": [
        *["cmdbus.database", "cmdbus.embedded", "cmdbus.producer"],
        *["cmdbus.web", "cmdbus.web.http", "cmdbus.web.security"],
    ],
    "cmdbus.worker.demo": ["cmdbus.web", "cmdbus.web.http"],
}
#: Modules in a row, each of which imports the next, inside one room.
MAX_DEPTH = 5
IMPURE = {"os", "time", "random", "secrets", "socket", "subprocess", "threading", "psycopg"}

pytestmark = pytest.mark.skipif(
    not (ROOT / "common").exists(), reason="reads the checkout, and there is none here"
)


def modules() -> dict[str, Path]:
    """The file of each module, by its name; a room's door has the room's name."""
    found = {}
    for package, folder in PACKAGES.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if package_of(file) != package:
                continue
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(part for part in parts if part != "__init__")])] = file
    return found


def package_of(file: Path) -> str:
    """That of the innermost directory: the one of cmdbus.testing lies in that of cmdbus.worker."""
    held = {package: ROOT / folder for package, folder in PACKAGES.items()}
    around = [package for package, folder in held.items() if folder in file.parents]
    return max(around, key=lambda package: len(PACKAGES[package]))


def room_of(name: str) -> str:
    """The innermost room that `name`, of a module or of something in it, lies in."""
    while name not in FLOOR_PLAN:
        name, _, _ = name.rpartition(".")
    return name


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imported(file: Path) -> list[tuple[str, bool]]:
    """Whole dotted names of all that a module imports, and whether it does so in a function."""
    found = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.col_offset > 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: import by whole names"
            for alias in node.names:
                found.append((f"{node.module}.{alias.name}", node.col_offset > 0))
    return found


def imports(file: Path) -> set[str]:
    return {name for name, _ in imported(file)}


def is_ours(name: str) -> bool:
    return name.split(".")[0] == "cmdbus"


def test_each_room_imports_only_the_rooms_of_the_floor_plan() -> None:
    for module, file in modules().items():
        if module == "cmdbus":  # exports the public names of all rooms, lazily
            continue
        room = room_of(module)
        for name, in_function in imported(file):
            if is_ours(name):
                allowed = [room, *FLOOR_PLAN[room], *(IN_CHILDREN.get(room, []) * in_function)]
                assert room_of(name) in allowed, f"{file} must not import {name}"


def test_the_floor_plan_has_no_circles() -> None:
    built: list[str] = []
    for room, others in FLOOR_PLAN.items():
        assert set(others) <= set(built), f"{room} stands on rooms that come later"
        built.append(room)


def test_no_chain_of_imports_inside_a_room_is_long() -> None:
    files = modules()

    def depth(module: str, chain: tuple[str, ...]) -> int:
        assert module not in chain, f"a circle of imports: {chain}"
        inside = {
            found
            for name, in_function in imported(files[module])
            if not in_function
            for found in (name, name.rpartition(".")[0])
            if found in files and found not in FLOOR_PLAN and room_of(found) == room_of(module)
        }
        return 1 + max((depth(found, (*chain, module)) for found in inside), default=0)

    deepest = {module: depth(module, ()) for module in files if module not in FLOOR_PLAN}
    assert {module: n for module, n in deepest.items() if n > MAX_DEPTH} == {}


def is_value(name: str) -> bool:
    """A constant, or a type whose instances never change."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    found = get_origin(found) or found
    if not isinstance(found, type):
        return isinstance(found, int | float | str | frozenset | tuple | UUID)
    frozen = dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return bool(frozen) or issubclass(found, Enum | tuple)


def test_modules_that_call_themselves_pure_are() -> None:
    files = modules()
    documented = {name: ast.get_docstring(parsed(file)) or "" for name, file in files.items()}
    pure = {name for name, text in documented.items() if re.search(r"\bPure\b", text)}
    assert len(pure) > 20
    for name in pure:
        used = imports(files[name])
        tops = {imported.split(".")[0] for imported in used}
        if name == "cmdbus.worker.claims.rejections":  # reads the driver's errors, which are values
            tops -= {"psycopg"}
        assert not tops & IMPURE, f"{name} decides, so it must not use {tops & IMPURE}"
        others = {
            i
            for i in used
            if is_ours(i) and i not in pure and i.rpartition(".")[0] not in {*pure, "cmdbus.errors"}
        }
        impure = {imported for imported in others if not is_value(imported)}
        assert not impure, f"{name} is pure only if what it uses is, or is a value: {impure}"


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("time", {"cmdbus.clock"}),
        ("asyncio", {"cmdbus.asynchronous"}),
        ("psycopg", DATABASE_ROOMS),
        ("prometheus_client", {"cmdbus.prometheus"}),
        ("opentelemetry", {"cmdbus.otel"}),
        (
            "django",
            {
                *["cmdbus.django", "cmdbus.django.management.commands"],
                "cmdbus.integrations.django_connection",
            },
        ),
    ],
)
def test_a_package_is_imported_only_where_it_may_be(package: str, allowed: set[str]) -> None:
    """An application that replaces the functions of `time` must not move due times, no thread
    runs an event loop, the supervisor uses no database, and Django is loaded where it is used."""
    for module, file in modules().items():
        if not {module, room_of(module)} & allowed:
            taken = {name for name in imports(file) if name.startswith(package)}
            assert not taken, f"{file} must not import {taken}"


def test_no_module_of_the_supervisor_loads_a_database_driver_or_starts_a_thread() -> None:
    names = sorted(name for name in modules() if name.startswith("cmdbus.supervisor"))
    loads = (
        f"import sys, threading, importlib; [importlib.import_module(n) for n in {names}];"
        "from cmdbus.supervisor.imports import preload; preload();"
        "print([m for m in sys.modules if m.startswith('psycopg')], threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "[] 1"


def test_sql_lives_in_its_files() -> None:
    # Not ALTER and GRANT: sentences advise those.
    verbs = "SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|DROP|COPY|WITH|BEGIN|COMMIT|ROLLBACK"
    verbs += "|TRUNCATE|LOCK TABLE|SET LOCAL|SET SESSION|NOTIFY|VACUUM"
    begins = re.compile(rf"\s*({verbs})\b")
    for file in modules().values():
        tree = parsed(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                assert not begins.match(text), f"{file}:{node.lineno}"


def test_declared_packages_are_the_directories_on_the_disk() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    doors = {name for name, file in modules().items() if file.name == "__init__.py"}
    assert set(declared["packages"]) == doors == set(FLOOR_PLAN)
    assert declared["package-dir"] == PACKAGES
    for name, file in modules().items():
        assert name in doors or name.rpartition(".")[0] in doors, f"{file} is in no room"


def test_no_module_of_common_shadows_a_package() -> None:
    """common/worker.py would win over cmdbus.worker when editable and lose in the wheel."""
    for name in PACKAGES.values():
        assert not (ROOT / "common" / f"{name}.py").exists()
        assert not (ROOT / "common" / name).exists()


def test_each_package_refuses_its_directory_name() -> None:
    for folder in PACKAGES.values():
        done = subprocess.run(
            [sys.executable, "-c", f"import {folder.replace('/', '.')}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert "pip install -e ." in done.stderr


def test_every_public_name_can_be_imported_and_is_known_to_type_checkers() -> None:
    import cmdbus

    for name in cmdbus.__all__:
        assert getattr(cmdbus, name).__name__ == name
    tree = ast.parse((ROOT / "common" / "__init__.py").read_text())
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cmdbus.")
        for alias in node.names
    }
    assert typed == set(cmdbus.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Job'"):
        cmdbus.Job  # noqa: B018
