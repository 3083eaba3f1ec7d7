"""Which tasks of a Django project workers know, and how they handle them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django_support import set_up
from running_tasks import BACKEND, MODULE, task_settings, tasks_setting

from cmdbus import Command, HandlerAlreadyRegisteredError, HandlerRegistry
from cmdbus.errors import AppError

PROJECT = "django_project"


@pytest.fixture(autouse=True)
def django() -> None:
    set_up()


@pytest.fixture
def write_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], str]]:
    """Writes a module that can be imported during the test, and returns its name."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def test_tasks_are_those_of_modules_and_packages_of_apps_and_of_listed_modules() -> None:
    from cmdbus.django.discovery import tasks

    with task_settings(tasks_setting(())):
        found = {*tasks()}
    assert f"{PROJECT}.shop.tasks.charge" in found  # a module
    assert f"{PROJECT}.blog.tasks.counting.count_words" in found  # in a package
    with task_settings():
        more = {*tasks()}
    assert found < more
    assert f"{MODULE}.write" in more
    assert all(path.startswith(f"{MODULE}.") for path in more - found)


def test_a_task_is_known_by_its_own_path_whatever_names_it_has(
    write_module: Callable[[str, str], str],
) -> None:
    from cmdbus.django.discovery import tasks

    text = "from tasks_that_end import write as other_name\nurgent = other_name.using(priority=90)"
    with task_settings(tasks_setting((write_module("more_tasks", text),))):
        found = tasks()[f"{MODULE}.write"]
        assert not any(path.startswith("more_tasks.") for path in tasks())
    assert found.priority == 0  # The one that the path names.


def test_a_module_of_tasks_that_cannot_be_imported_is_named_with_its_traceback(
    write_module: Callable[[str, str], str],
) -> None:
    module = write_module("broken_tasks", "def look():\n    return {}['missing']\n\nlook()\n")
    with task_settings(tasks_setting((module,))):
        registry = HandlerRegistry(django=True)
        for _ in range(2):
            with pytest.raises(AppError) as caught:
                len(registry)
    text = str(caught.value)
    assert text.startswith("importing broken_tasks for its tasks failed:\nTraceback")
    assert text.endswith("KeyError: 'missing'")
    assert "return {}['missing']" in text and "importlib" not in text


def test_each_queue_of_each_backend_handles_each_task_with_the_options_of_its_own_backend() -> None:
    setting = tasks_setting(max_attempts=2, backoff=[1, 5], timeout=7.0)
    setting["reports"] = {
        "BACKEND": BACKEND,
        "QUEUES": ["default", "reports"],
        "OPTIONS": {"tasks": {f"{MODULE}.write": {"max_attempts": 5}}},
    }
    with task_settings(setting):
        registry = HandlerRegistry(django=True)
        of_write = {each.domain: each for each in registry if each.type == f"{MODULE}.write"}
        others = {each.domain for each in registry if each.type == f"{MODULE}.read_the_thread"}
    assert {*of_write} == others == {"default", "mail", "reports"}
    mail, reports = of_write["mail"], of_write["reports"]
    assert (mail.policy.max_attempts, mail.policy.backoff, mail.timeout) == (2, (1, 5), 7.0)
    assert (reports.policy.max_attempts, reports.timeout) == (5, 35.0)
    assert of_write["default"].policy.max_attempts == 2  # That of the task's own backend.


def test_a_registry_handles_its_own_commands_and_each_task_and_none_twice() -> None:
    def own(command: Command, context: Any) -> None: ...

    with task_settings():
        registry = HandlerRegistry(django=True)
        registry.register("payments", "Debit", own)
        assert registry.find("payments", "Debit") and registry.find("mail", f"{MODULE}.write")
        registry = HandlerRegistry(django=True)
        registry.register("mail", f"{MODULE}.write", own)
        with pytest.raises(
            HandlerAlreadyRegisteredError, match=rf"mail/{MODULE}.write is handled by .*own already"
        ):
            len(registry)


def test_a_schedule_sends_a_task_without_arguments_with_its_priority() -> None:
    path = f"{MODULE}.read_the_thread"
    with task_settings(tasks_setting(schedule={path: "0 3 * * *"})):
        [schedule] = HandlerRegistry(django=True).schedules()
    assert (schedule.name, schedule.domain, schedule.type) == (path, "default", path)
    assert (schedule.cron, schedule.timezone) == ("0 3 * * *", "America/Chicago")
    assert schedule.data == '{"args":[],"kwargs":{}}'


def test_a_schedule_is_declared_by_the_workers_of_its_backends_bus_alone() -> None:
    path = f"{MODULE}.read_the_thread"
    setting = tasks_setting()
    options = {"schema": "other", "schedule": {path: "0 3 * * *"}}
    setting["other"] = {"BACKEND": BACKEND, "QUEUES": ["default"], "OPTIONS": options}
    with task_settings(setting):
        assert HandlerRegistry(django=True).schedules() == []


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (f"{MODULE}.read_the_threat", f"no task: did you mean '{MODULE}.read_the_thread'"),
        (f"{MODULE}.write", "needs the argument 'title': a scheduled task is called without"),
    ],
)
def test_a_schedule_of_what_cannot_run_is_an_error_of_the_start(path: str, sentence: str) -> None:
    settings = task_settings(tasks_setting(schedule={path: "0 3 * * *"}))
    with settings, pytest.raises(AppError) as caught:
        len(HandlerRegistry(django=True))
    assert str(caught.value).startswith("OPTIONS['schedule'] of TASKS['default'] names '")
    assert sentence in str(caught.value)


def test_a_task_is_scheduled_by_one_backend() -> None:
    path = f"{MODULE}.read_the_thread"
    setting = tasks_setting(schedule={path: "0 3 * * *"})
    setting["other"] = setting["default"]
    with task_settings(setting), pytest.raises(AppError, match="leave it in one of them") as caught:
        len(HandlerRegistry(django=True))
    assert str(caught.value).startswith(f"'{path}' is in OPTIONS['schedule'] of TASKS['default']")


def test_wrong_settings_of_tasks_are_a_sentence_at_the_start() -> None:
    with task_settings(tasks_setting(timeout=-1)), pytest.raises(AppError) as caught:
        len(HandlerRegistry(django=True))
    sentence = "TASKS['default']: timeout must be more than 0 seconds and finite, not -1"
    assert str(caught.value) == sentence


def test_a_project_without_tasks_needs_no_task_framework() -> None:
    """In a process of its own, which Django is set up in by the registry."""
    program = """if True:
        import sys
        from django.conf import settings
        server = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}
        settings.configure(INSTALLED_APPS=["cmdbus.django"], DATABASES={"default": server})
        from cmdbus import HandlerRegistry
        registry = HandlerRegistry(django=True)
        registry.register("payments", "Debit", lambda command, context: None)
        assert [each.type for each in registry] == ["Debit"]
        assert "django_tasks" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)
