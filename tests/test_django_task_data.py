"""What the data of a task's command says, as values."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django_support import set_up

set_up()

from cmdbus.django.task_data import TaskData, command_priority, decode, encode  # noqa: E402


@pytest.mark.parametrize(
    ("priority", "of_command"),
    [
        *((100, 0), (81, 0), (80, 1), (61, 1), (60, 2), (41, 2), (40, 3), (21, 3), (20, 4)),
        *((1, 4), (0, 5), (-1, 6), (-20, 6), (-21, 7), (-40, 7), (-41, 8), (-60, 8)),
        *((-61, 9), (-80, 9), (-81, 10), (-100, 10)),
    ],
)
def test_a_task_with_a_higher_priority_runs_before_one_with_0(
    priority: int, of_command: int
) -> None:
    assert command_priority(priority) == of_command


def test_data_has_what_is_not_the_default() -> None:
    assert encode((7,), {}) == {"args": [7], "kwargs": {}}
    time = datetime(2030, 1, 31, 12, tzinfo=UTC)
    data = encode((), {"order": 7}, backend="other", priority=-5, run_after=time)
    more = {"backend": "other", "priority": -5, "run_after": "2030-01-31T12:00:00+00:00"}
    assert data == {"args": [], "kwargs": {"order": 7}, **more}
    assert decode(data) == TaskData(
        args=[], kwargs={"order": 7}, backend="other", priority=-5, run_after=time
    )


@pytest.mark.parametrize("data", [None, {}, {"args": None}, {"another": 1}])
def test_what_data_lacks_has_its_default(data: object) -> None:
    assert decode(data) == TaskData(args=[], kwargs={})


def test_arguments_are_normalised_as_django_does() -> None:
    data = encode(((1, [2.5]), range(2), b"text"), {"a": {"b": (None, True)}})
    assert data["args"] == [[1, [2.5]], [0, 1], "text"]
    assert data["kwargs"] == {"a": {"b": [None, True]}}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([datetime(2030, 1, 1)], TypeError, "args[0] is of type datetime: JSON has no such thing"),
        ([1, {2}], TypeError, "args[1] is of type set"),
        ({"when": [date(2030, 1, 1)]}, TypeError, "kwargs['when'][0] is of type date"),
        ({"price": {"of": Decimal(1)}}, TypeError, "kwargs['price']['of'] is of type Decimal"),
        ([uuid4()], TypeError, "args[0] is of type UUID"),
        ([object()], TypeError, "args[0] is of type object"),
        ([{1: 2}], TypeError, "args[0] has the key 1: JSON keys are strings"),
        ([float("nan")], ValueError, "args[0] is nan: JSON has no such number"),
        ([float("inf")], ValueError, "args[0] is inf"),
        ([["a\0b"]], ValueError, "args[0][0] contains a NUL character"),
        ([{"\0": 1}], ValueError, "args[0] has a key that contains a NUL character"),
        (["\ud800"], ValueError, "args[0] contains half of a surrogate pair"),
        ([b"\xff"], ValueError, "args[0] is bytes that are not UTF-8"),
        ([10**5000], ValueError, "args[0] has more than 4300 digits"),
    ],
)
def test_an_argument_that_is_no_json_is_named(
    arguments: Any, error: type[Exception], message: str
) -> None:
    args, kwargs = (arguments, {}) if isinstance(arguments, list) else ((), arguments)
    with pytest.raises(error) as refused:
        encode(args, kwargs)
    assert str(refused.value).startswith(message)


def test_an_argument_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="nested deeper than 200 levels"):
        encode((circle,), {})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "data of a task must be an object with args and kwargs, not [1]"),
        ({"args": 7}, "args of a task must be a list, not 7"),
        ({"kwargs": []}, "kwargs of a task must be an object, not []"),
        ({"priority": True}, "priority of a task must be a whole number, not True"),
        ({"priority": 101}, "priority of a task must be from -100 to 100, not 101"),
        ({"backend": 1}, "backend of a task must be a text, not 1"),
        ({"run_after": "soon"}, "run_after of a task must be like '2026-01-31T12:00:00+00:00'"),
    ],
)
def test_data_that_is_no_tasks_is_refused_in_a_sentence(data: object, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        decode(data)
    assert str(refused.value).startswith(message)
