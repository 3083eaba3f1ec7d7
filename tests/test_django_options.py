"""Options of the backend and of its tasks, and what is refused as one."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage
from django.db import connections
from django.test.utils import override_settings
from django.utils import timezone
from django_support import set_up

set_up()

from django_project.decorator import task  # noqa: E402
from django_project.shop.tasks import charge, confirm  # noqa: E402

from cmdbus.django.frameworks import InvalidTask, InvalidTaskBackend, task_backends  # noqa: E402
from cmdbus.django.options import TaskOptions, options_of  # noqa: E402

CHARGE = "django_project.shop.tasks.charge"


def remind(order_id: int) -> None: ...


class Mailer:
    @staticmethod
    def remind(order_id: int) -> None: ...


def tasks_of(params: dict[str, Any]) -> dict[str, Any]:
    """The setting TASKS with one backend."""
    return {"default": {"BACKEND": "cmdbus.django.CommandBusBackend", **params}}


def with_options(**options: Any) -> override_settings:
    return override_settings(TASKS=tasks_of({"QUEUES": ["default", "mail"], "OPTIONS": options}))


def checked(params: dict[str, Any]) -> list[CheckMessage]:
    with override_settings(TASKS=tasks_of(params)):
        return list(task_backends["default"].check())


def test_the_options_of_a_task_are_those_of_settings_then_its_own_then_the_backends() -> None:
    own = task(max_attempts=2, timeout=5)(remind)
    assert options_of(own) == TaskOptions(max_attempts=2, timeout=5.0)
    path = own.module_path
    with with_options(max_attempts=4, backoff=[1], tasks={path: {"timeout": 9, "atomic": False}}):
        assert options_of(own) == TaskOptions(
            max_attempts=2, backoff=(1.0,), timeout=9.0, atomic=False
        )
        assert options_of(charge) == TaskOptions(max_attempts=4, backoff=(1.0,))
    assert options_of(own.using(priority=5)) == options_of(own)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"OPTIONS": {"max_attemps": 2}}, "OPTIONS has no option 'max_attemps': did you mean 'max"),
        ({"OPTIONS": {"max_attempts": 0}}, "max_attempts must be a whole number from 1 to 32767"),
        ({"OPTIONS": {"backoff": 5}}, "backoff must be a sequence of seconds, not 5"),
        ({"OPTIONS": {"timeout": "9"}}, "timeout must be a number of seconds, not '9'"),
        ({"OPTIONS": {"atomic": 1}}, "atomic must be True or False, not 1"),
        ({"OPTIONS": {"schema": "My"}}, "schema must be a-z or _ and up to 47"),
        ({"OPTIONS": {"modules": "shop"}}, "modules must be a list of names like 'shop.reports'"),
        ({"OPTIONS": {"using": None}}, "using must be an alias of DATABASES, not None"),
        ({"OPTIONS": {"tasks": []}}, "tasks must be a dict, not []"),
        (
            {"OPTIONS": {"tasks": {CHARGE: {"timout": 9}}}},
            f"a task of tasks['{CHARGE}'] has no option 'timout': did you mean 'timeout'?",
        ),
        (
            {"OPTIONS": {"tasks": {CHARGE: {"timeout": -1}}}},
            f"timeout of tasks['{CHARGE}'] must be more than 0 seconds and finite, not -1",
        ),
        ({"OPTIONS": {"schedule": {CHARGE: 3}}}, f"schedule['{CHARGE}'] must be a cron line"),
        (
            {"OPTIONS": {"schedule": {CHARGE: "0 25 * * *"}}},
            f"cron of schedule['{CHARGE}'] cannot be",
        ),
        ({"OPTIONS": []}, "OPTIONS must be a dict, not []"),
        ({"QUEUES": []}, "QUEUES is empty, which elsewhere means any: workers must know which"),
        ({"QUEUES": "mail"}, "QUEUES must be a list of names, not 'mail'"),
        ({"QUEUES": None}, "QUEUES must be a list of names, not None"),
        ({"QUEUES": [["mail"]]}, "each of QUEUES must be a letter and up to 99 more of"),
        ({"QUEUES": ["low prio"]}, "each of QUEUES must be a letter and up to 99 more of"),
    ],
)
def test_wrong_options_are_a_sentence_of_the_check_and_of_the_first_use(
    params: dict[str, Any], sentence: str
) -> None:
    [error] = checked(params)
    assert (error.id, error.is_serious()) == ("cmdbus.E102", True)
    assert f"TASKS['default']: {sentence}" in error.msg
    with override_settings(TASKS=tasks_of(params)):
        # The check may import modules of tasks before it comes to this.
        own = task(remind)
        with pytest.raises(InvalidTaskBackend) as refused:
            options_of(own)
    assert str(refused.value) == error.msg.removesuffix(".")


def test_the_check_finds_nothing_in_the_projects_settings() -> None:
    assert checked(settings.TASKS["default"]) == []


SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.mark.parametrize(
    ("using", "sentence"),
    [
        ("other", "using is 'other', which is not in DATABASES: there are 'default', 'lite'"),
        ("defualt", "using is 'defualt', which is not in DATABASES: did you mean 'default'?"),
        ("lite", "the database 'lite' is sqlite, and cmdbus needs PostgreSQL: give the alias"),
    ],
)
def test_the_database_must_be_postgresql(
    monkeypatch: pytest.MonkeyPatch, using: str, sentence: str
) -> None:
    """It is not opened."""
    monkeypatch.setitem(connections.settings, "lite", {**connections.settings["default"], **SQLITE})
    [error] = checked({"OPTIONS": {"using": using}})
    assert error.id == "cmdbus.E103"
    assert sentence in error.msg


def test_the_app_must_be_installed() -> None:
    apps = [app for app in settings.INSTALLED_APPS if app != "cmdbus.django"]
    with override_settings(INSTALLED_APPS=apps):
        [error] = checked({})
    assert (error.id, error.hint) == ("cmdbus.E101", "Add 'cmdbus.django' to INSTALLED_APPS.")


def test_options_for_a_task_that_workers_do_not_find_are_warned_of() -> None:
    [warning] = checked({"OPTIONS": {"tasks": {"django_project.shop.tasks.chage": {}}}})
    assert (warning.id, warning.is_serious()) == ("cmdbus.W101", False)
    assert "OPTIONS['tasks'] names 'django_project.shop.tasks.chage'" in warning.msg
    assert warning.hint == f"Did you mean '{CHARGE}'?"
    missing = {
        "modules": ["shop_reports"],
        "tasks": {CHARGE: {}},
        "schedule": {CHARGE: "0 3 * * *"},
    }
    assert checked({"OPTIONS": missing}) == []


def test_a_schedule_that_keeps_workers_from_starting_is_an_error() -> None:
    paths = ["django_project.shop.tasks.chage", CHARGE]
    errors = checked({"OPTIONS": {"schedule": dict.fromkeys(paths, "0 3 * * *")}})
    where = "OPTIONS['schedule'] of TASKS['default'] names"
    assert [(error.id, error.msg) for error in errors] == [
        ("cmdbus.E104", f"{where} '{paths[0]}', which is no task: did you mean '{CHARGE}'?"),
        (
            "cmdbus.E104",
            f"{where} '{CHARGE}', which needs the argument 'order_id': a scheduled task is called "
            f"without arguments.",
        ),
    ]


def named(function: Callable[..., Any], name: str, module: str = __name__) -> Callable[..., Any]:
    """A function of the same code, with another name."""

    def made(order_id: int) -> None: ...

    made.__qualname__, made.__module__ = name, module
    return made


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Mailer.remind, "is in a class: a task is a function of a module"),
        (named(remind, "x" * 100), "a task's path must be a letter and up to 99 more of"),
        (named(remind, "erinnerung_für"), "where 'ü' is not ASCII"),
        (named(remind, "remind", "_tasks"), "a task's path must be a letter"),
        (named(remind, "remind", "__main__"), "defined in __main__, which is another module in"),
    ],
    ids=["class", "long", "not ASCII", "private module", "main"],
)
def test_a_path_that_cannot_be_a_type_is_refused(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(InvalidTask) as refused:
        task(function)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, not 0"),
        ({"backoff": ()}, "backoff must have at least one entry"),
        ({"timeout": float("nan")}, "timeout must be more than 0 seconds and finite, not nan"),
        ({"atomic": "no"}, "atomic must be True or False, not 'no'"),
        ({"priority": "high"}, "priority must be a whole number, not 'high'"),
        ({"priority": float("nan")}, "priority must be a whole number, not nan"),
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"queue_name": "other"}, "Queue 'other' is not valid for backend"),
        ({"takes_context": True}, "does not have a first argument of 'context'"),
    ],
)
def test_wrong_options_of_a_task_are_refused_at_the_decorator(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidTask) as refused:
        task(**options)(remind)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("time", ["tomorrow", timezone.now().date(), 5])
def test_run_after_must_be_a_time(time: object) -> None:
    with pytest.raises(InvalidTask, match="run_after must be a datetime, not"):
        confirm.using(run_after=time)


def test_a_task_that_no_worker_finds_is_refused_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = task(remind)
    remedies = (
        r"is in a module that no worker imports: move it into a module `tasks` of an installed "
        rf"app, or add '{__name__}' to OPTIONS\['modules'\] of TASKS\['default'\]"
    )
    with pytest.raises(InvalidTask, match=remedies):
        lost.enqueue(7)
    module = ModuleType("shop_reports")
    monkeypatch.setitem(sys.modules, "shop_reports", module)
    local = task(named(remind, "remind", "shop_reports"))
    listed = with_options(modules=["shop_reports"])
    with listed, pytest.raises(InvalidTask, match="is in no variable of its module"):
        local.enqueue(7)
    vars(module)["remind"] = task(named(remind, "remind", "shop_reports"))
    with listed, pytest.raises(InvalidTask, match="another function than the one that workers run"):
        local.enqueue(7)


def test_a_task_is_sent_while_other_modules_of_tasks_cannot_be_imported(django_dsn: str) -> None:
    with with_options(modules=["shop_reports"]):
        result = charge.enqueue(7)
        assert charge.get_result(result.id) == result
