"""Types of payloads that name others: generic, derived, containing themselves, defined later."""

import typing
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any, Generic, Optional, TypedDict

import pydantic
import pytest
from payload_models import Page, T, read

from cmdbus.payloads.mismatch import Mismatch
from cmdbus.payloads.readers import reader_of


@dataclass(frozen=True)
class Named(Page[int], Generic[T]):
    of: T


class Numbers(Named[str]):
    pass


class Box(TypedDict, Generic[T]):
    inside: T


class TextBox(Box[str]):
    lid: int


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (Named[str], {"items": [1], "of": "x"}, Named([1], "x")),
        (Numbers, {"items": [1], "of": "x"}, Numbers([1], "x")),
        (TextBox, {"inside": "x", "lid": 1}, {"inside": "x", "lid": 1}),
        (tuple[int, *tuple[str, ...]], [1, "a", "b"], (1, "a", "b")),
        (tuple[int, *tuple[date, ...], str], [1, "2026-01-02", "b"], (1, date(2026, 1, 2), "b")),
        (tuple[int, *tuple[str, bool]], [1, "a", True], (1, "a", True)),
    ],
)
def test_bases_and_unpacked_tuples_have_their_own_types(kind: Any, data: Any, value: Any) -> None:
    assert read(kind, data) == value
    with pytest.raises(Mismatch):
        read(kind, {**data, "items": ["x"], "inside": 5} if isinstance(data, dict) else [*data, 5])


def test_a_type_may_contain_itself_and_one_that_does_not_exist_is_a_name_error() -> None:
    @dataclass
    class Tree:
        children: "list[Tree]" = field(default_factory=list)
        best: Optional["Tree"] = None

    tree = Tree([Tree(), Tree([Tree()])], Tree())
    assert read(Tree, asdict(tree)) == tree

    class Lost(TypedDict):
        found: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    class Wrong(pydantic.BaseModel):
        found: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    @pydantic.dataclasses.dataclass
    class WrongToo:
        found: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    for lost in (Lost, Wrong, list[Wrong], WrongToo):
        with pytest.raises(NameError, match=r"^name 'Nowhere' is not defined$"):
            reader_of(lost)


# A user's module, in which a model comes before one that it names.
class Basket(pydantic.BaseModel):
    first: "Item"


class Item(pydantic.BaseModel):
    name: str


def test_a_model_of_pydantic_may_name_one_that_is_defined_after_it() -> None:
    assert read(Basket, {"first": {"name": "tea"}}) == Basket(first=Item(name="tea"))


def test_dicts_of_typing_may_stand_without_brackets() -> None:
    for kind in (typing.Dict, typing.Mapping):  # noqa: UP006
        assert read(kind, {"a": [1]}) == {"a": [1]}


LISTS = [list[int], Iterable[int], tuple[int, ...], typing.List, typing.Tuple]  # noqa: UP006


@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_read_by_all_their_names(kind: Callable[..., object]) -> None:
    assert [*read(kind, [1, 2])] == [1, 2]
