"""`manage.py check`: what it reports about cmdbus in a project, without the database."""

from pathlib import Path
from typing import Any

import django
import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connections
from django.test.utils import override_settings
from django_support import fresh_connections, set_up

from cmdbus import HandlerRegistry
from cmdbus.django import app
from cmdbus.django.checks import check_project

set_up()

TASKS = {"default": {"BACKEND": "cmdbus.django.CommandBusBackend", "QUEUES": ["mail"]}}
APP = """
from cmdbus import HandlerRegistry

registry = HandlerRegistry()
registry.register("shop", "Greet", lambda command, context: None)
"""


def found(**settings: Any) -> list[CheckMessage]:
    with override_settings(**settings):
        return check_project()


def test_a_project_that_is_set_up_is_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a database, which no check touches."""
    monkeypatch.setitem(connections.settings["default"], "HOST", "/nowhere")
    with fresh_connections():
        assert run_checks() == []


def test_the_checks_run_with_those_of_django(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django, "VERSION", (4, 2, 0, "final", 0))
    assert "cmdbus.E001" in [each.id for each in run_checks(tags=["cmdbus"])]


def test_the_backport_must_be_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django, "VERSION", (5, 2))
    [error] = found(INSTALLED_APPS=["cmdbus.django"], TASKS=TASKS)
    assert (error.id, "'django_tasks'" in error.msg) == ("cmdbus.E002", True)
    assert found(INSTALLED_APPS=["cmdbus.django"], TASKS={}) == []


def test_another_database_is_warned_of_unless_a_backend_names_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ENGINE", "django.db.backends.sqlite3")
    with fresh_connections():
        [warning] = found(TASKS={})
        assert (warning.id, warning.level) == ("cmdbus.W001", 30)
        assert "SQLite" in warning.msg and "using" in (warning.hint or "")
        assert found(TASKS=TASKS) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("checked_app:registry", ""),
        ("checked_app:registri", "did you mean 'registry'?"),
        ("checked_apq:registry", "there is no module 'checked_apq'"),
        ("checked_app", "must be MODULE:REGISTRY"),
        (7, "must be MODULE:REGISTRY"),
    ],
)
def test_the_app_of_the_setting_must_be_one(
    given: object, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checked_app.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    errors = found(CMDBUS_APP=given, TASKS={})
    assert [each.id for each in errors] == ["cmdbus.E003"] * bool(sentence)
    assert all(sentence in each.msg for each in errors)


@pytest.mark.parametrize("given", [None, "checked_app:registry", "cmdbus.django.app:registry"])
def test_the_app_of_a_fleet_is_the_settings_or_has_all_tasks(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that cmdbus-supervise has started by itself."""
    (tmp_path / "checked_app.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    app._registry.cache_clear()
    with override_settings(CMDBUS_APP=given):
        found = app.registry
    app._registry.cache_clear()
    assert isinstance(found, HandlerRegistry)
    assert (found.django_surroundings is None) == (given == "checked_app:registry")
    assert ("shop Greet" in [each.name for each in found]) == (given == "checked_app:registry")


def test_an_error_in_a_module_of_tasks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tasks.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    tasks = {"default": {**TASKS["default"], "OPTIONS": {"modules": ["broken_tasks"]}}}
    [error] = found(TASKS=tasks)
    assert error.id == "cmdbus.E003"
    assert "broken_tasks" in error.msg and "no_such_module" in error.msg
    assert found(TASKS=tasks, SILENCED_SYSTEM_CHECKS=["cmdbus.E003"]) == []
