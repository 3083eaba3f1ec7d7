"""Schedules that a registry declares."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from handlers import do_nothing, running
from preflights import checks
from queries import rows
from test_declaring import as_app

from cmdbus import Command, Context, CronMissingError, HandlerRegistry, handler
from cmdbus.errors import AppError
from cmdbus.schedules import Schedule
from cmdbus.settings import Settings
from cmdbus.worker import Worker
from cmdbus.worker.boot.app import load
from cmdbus.worker.boot.preflight import preflight


def work(command: Command, context: Context) -> None:
    pass


def declared(*arguments: Any, **options: Any) -> Schedule:
    registry = HandlerRegistry()
    registry.register("shop", "Work", work)
    registry.schedule(*arguments, **options)(work)
    [schedule] = registry.schedules()
    return schedule


def test_a_schedule_is_declared_above_or_below_the_handler() -> None:
    registry = HandlerRegistry()

    @registry.schedule("0 3 * * *", timezone="Europe/Zurich", name="nightly", missed="all")
    @registry.handler("shop", "Close")
    def close(command: Command, context: Context) -> None:
        pass

    @registry.handler("shop", "Count")
    @registry.schedule(every="15m", jitter=timedelta(minutes=1), data={"all": True}, priority="low")
    @registry.schedule(every=3600, name="hourly", max_attempts=5, key="counter")
    def count(command: Command, context: Context) -> None:
        pass

    nightly, hourly, quarters = registry.schedules()
    assert str(nightly) == "nightly: 0 3 * * * Europe/Zurich, shop/Close"
    assert (nightly.missed, nightly.data, nightly.priority) == ("all", "null", 5)
    assert (hourly.name, hourly.type, hourly.every) == ("hourly", "Count", 3600)
    assert (hourly.max_attempts, hourly.key, hourly.missed) == (5, "counter", "one")
    assert str(quarters) == "shop.Count: every 15m, shop/Count"
    assert (quarters.jitter, quarters.data, quarters.priority) == (60.0, '{"all":true}', 10)
    assert registry.schedules() == [nightly, hourly, quarters]


def test_a_method_of_an_instance_has_its_schedule() -> None:
    registry = HandlerRegistry()

    class Shop:
        @registry.schedule("0 3 * * *", name="nightly")
        @handler("shop", "Close")
        def close(self, command: Command, context: Context) -> None:
            pass

    registry.register_instance(Shop())
    assert [schedule.type for schedule in registry.schedules()] == ["Close"]


@pytest.mark.parametrize(
    ("types", "names", "sentence"),
    [
        (
            [],
            ["nightly"],
            "the schedule nightly is declared for work, which handles no type: decorate it with "
            "@registry.handler(domain, type), too",
        ),
        (
            ["Open", "Close"],
            ["nightly"],
            "the schedule nightly is declared for work, which handles shop/Open and shop/Close: "
            "give one of them a function of its own",
        ),
        (
            ["Open"],
            [None, None],
            "the schedule shop.Open is declared twice: give each a name of its own",
        ),
    ],
)
def test_a_schedule_without_its_one_handler_is_refused_where_the_registry_is_loaded(
    monkeypatch: pytest.MonkeyPatch, types: list[str], names: list[str | None], sentence: str
) -> None:
    registry = HandlerRegistry()
    registry.register("shop", "Other", do_nothing)
    for type_ in types:
        registry.register("shop", type_, work)
    for name in names:
        registry.schedule(every="1h", name=name)(work)
    with pytest.raises(ValueError) as raised:
        Worker("host=nowhere.invalid", registry)
    assert str(raised.value) == sentence
    app = as_app(monkeypatch, registry)
    with pytest.raises(AppError) as refused:
        load(app)
    assert str(refused.value) == f"{app}: {sentence}"


def test_a_name_that_is_made_of_domain_and_type_may_be_too_long() -> None:
    registry = HandlerRegistry()
    registry.register("d" * 60, "T" * 60, work)
    registry.schedule(every="1h")(work)
    with pytest.raises(ValueError, match="name of a schedule must be a letter and up to 99 more"):
        registry.schedules()


def test_the_check_shows_schedules_and_declares_none(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HandlerRegistry()
    registry.register("shop", "Work", work)
    registry.schedule("0 3 * * *", name="nightly")(work)
    registry.schedule(every="15m", name="often")(work)
    app = as_app(monkeypatch, registry)
    check = checks(dsn, app=app)["schedules"]
    assert check.sentence == "nightly: 0 3 * * * UTC, shop/Work; often: every 15m, shop/Work"
    assert rows(dsn, "SELECT FROM cmdbus.schedule") == []
    settings = Settings(app=app, dsn=dsn, procs=1, threads=2)
    last = list(preflight(settings, declares=True))[-1]
    assert last.sentence == "declared: 2 schedules"
    assert rows(dsn, "SELECT name, app FROM cmdbus.schedule ORDER BY name") == [
        ("nightly", app),
        ("often", app),
    ]


def test_a_worker_declares_its_schedules_and_removes_those_that_are_gone(dsn: str) -> None:
    registry = HandlerRegistry()
    registry.register("shop", "Work", work)
    registry.schedule(every="1d", name="daily")(work)
    names = "SELECT name, app FROM cmdbus.schedule"
    with running(dsn, registry):
        assert eventually(lambda: rows(dsn, names)) == [("daily", "worker:shop")]
    assert rows(dsn, names) == [("daily", "worker:shop")]
    without = HandlerRegistry()
    without.register("shop", "Work", work)
    with running(dsn, without):
        eventually(lambda: not rows(dsn, names))


NEVER = "it never matches, as no month that it names has such a day"
FIELDS = "its fields are minute, hour, day, month and weekday, like '0 3 * * *'"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "the schedule x needs a cron line or every, one of them"),
        ({"cron": "0 3 * * *", "every": "1h"}, "the schedule x needs a cron line or every, one"),
        ({"cron": "0 0 31 2 *"}, f"cron of the schedule x cannot be '0 0 31 2 *': {NEVER}"),
        ({"cron": "0 0 31 4,6 *"}, f"cron of the schedule x cannot be '0 0 31 4,6 *': {NEVER}"),
        ({"cron": "0 0 */30 2 1#5"}, NEVER),
        (
            {"cron": "61 * * * *"},
            f"cron of the schedule x cannot be '61 * * * *': bad minute; {FIELDS}",
        ),
        ({"cron": "0 0 32 * *"}, f"bad day-of-month; {FIELDS}"),
        ({"cron": "0 3 * *"}, f"'0 3 * *': wrong number of fields; {FIELDS}"),
        ({"cron": ""}, f"'': wrong number of fields; {FIELDS}"),
        ({"cron": 5}, "cron of the schedule x must be a text like '0 3 * * *', not 5"),
        (
            {"cron": "0 3 * * *", "timezone": "Europe/Zürich"},
            "timezone of the schedule x must be a name of a time zone, not 'Europe/Zürich': did "
            "you mean 'Europe/Zurich'?",
        ),
        ({"cron": "0 3 * * *", "timezone": "europe/zurich"}, "did you mean 'Europe/Zurich'?"),
        ({"cron": "0 3 * * *", "timezone": "../etc"}, ": write it like 'Europe/Zurich'"),
        ({"cron": "0 3 * * *", "timezone": 1}, "not 1: write it like 'Europe/Zurich'"),
        (
            {"every": "1h", "timezone": "UTC"},
            "timezone of the schedule x is only for a cron line: every counts from "
            "1970-01-01 00:00 UTC",
        ),
        (
            {"every": "soon"},
            "every of the schedule x must be like '30s', '15m', '2h' or '1d', not 'soon'",
        ),
        ({"every": 0}, "every of the schedule x must be whole seconds from 1 to 366 days, not 0"),
        ({"every": 1.5}, "must be whole seconds from 1 to 366 days, not 1.5"),
        ({"every": "367d"}, "must be whole seconds from 1 to 366 days, not '367d'"),
        ({"every": float("nan")}, "must be whole seconds from 1 to 366 days, not nan"),
        (
            {"every": "1h", "missed": "some"},
            "missed of the schedule x must be one of 'one', 'all', 'none', not 'some'",
        ),
        (
            {"every": "1h", "jitter": -1},
            "jitter of the schedule x must be seconds or a timedelta from 0 to 24 hours, not -1",
        ),
        ({"every": "1h", "data": {1: 2}}, "data of the schedule x"),
        ({"every": "1h", "priority": 11}, "priority of the schedule x must be 'high', 'normal', "),
        ({"every": "1h", "max_attempts": 0}, "max_attempts of the schedule x must be a whole"),
        ({"every": "1h", "key": ""}, "key of the schedule x must be text of 1 to 200"),
        ({"every": "1h", "name": "a b"}, "name of a schedule must be a letter and up to 99 more"),
        ({"every": timedelta(days=367)}, "from 1 to 366 days, not 31708800 s"),
        ({"every": "1h", "jitter": timedelta(hours=25)}, "from 0 to 24 hours, not 90000 s"),
        ({"every": 0, "name": None}, "every of the schedule of work must be whole seconds"),
        ({"cron": "@daily"}, "must be fields, not '@daily': write it like '0 0 * * *'"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        declared(**{"name": "x", **arguments})
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_an_unknown_option_is_one_sentence() -> None:
    with pytest.raises(TypeError, match="a schedule has no option 'place': there are every, "):
        declared("0 3 * * *", place="UTC")
    with pytest.raises(TypeError, match="no option 'timezon': did you mean 'timezone'"):
        declared("0 3 * * *", timezon="UTC")


def test_without_cronsim_a_cron_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ValueError) as raised:
        declared("0 3 * * *")
    assert str(raised.value) == (
        "cron of the schedule of work: cron lines are read by cronsim, which is not installed: "
        "pip install cronsim"
    )
    assert isinstance(raised.value, CronMissingError)
    with pytest.raises(CronMissingError, match="cron of the schedule nightly: cron lines are read"):
        declared("0 3 * * *", name="nightly")
    Path("nights.py").write_text(
        "from cmdbus import HandlerRegistry\n"
        "HandlerRegistry().schedule('0 3 * * *', name='nightly')(print)\n"
    )
    with pytest.raises(AppError) as refused:
        load("nights:registry")
    assert str(refused.value).startswith("nights: cron of the schedule nightly: cron lines are")
    assert "\n" not in str(refused.value)
    assert declared(every="1d").every == 86400
