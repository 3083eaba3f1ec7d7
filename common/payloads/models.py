"""Readers of objects: dataclasses and TypedDicts. Fields that a model does not have are ignored, so
that senders may be deployed before workers. Pure."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import (
    Any,
    NamedTuple,
    NotRequired,
    Required,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from typing import is_typeddict as is_typed_dict

from cmdbus.payloads.mismatch import (
    Mismatch,
    Outcomes,
    Reader,
    UnreadableTypeError,
    expected,
    refused,
)


class Field(NamedTuple):
    name: str
    kind: Any
    is_required: bool


class Model(NamedTuple):
    name: str
    #: Called with the fields that there are, by their names.
    make: Callable[..., Any]
    fields: list[Field]


def model_of(kind: Any) -> Model | None:
    """None for anything but a dataclass or a TypedDict, also with the types that it is generic for.
    A NameError if a type that it names does not exist yet."""
    origin = get_origin(kind) or kind
    if not isinstance(origin, type):
        return None
    if is_typed_dict(origin):
        return Model(origin.__name__, dict, _typed_dict_fields(kind, origin))
    if is_dataclass(origin):
        return Model(origin.__name__, origin, _dataclass_fields(kind, origin))
    return None


def model_reader(model: Model, readers: dict[str, Reader], outcomes: Outcomes = ()) -> Reader:
    """`readers` by the fields' names."""
    steps = [(field.name, readers[field.name], field.is_required) for field in model.fields]
    make = model.make

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise expected("an object", data)
        values = {}
        for name, read_field, is_required in steps:
            if name in data:
                try:
                    values[name] = read_field(data[name])
                except Mismatch as mismatch:
                    raise mismatch.inside(name) from None
            elif is_required:
                raise Mismatch("is missing", name)
        try:
            return make(**values)
        except outcomes:
            raise
        except Exception as error:
            raise refused(model.name, error) from error

    return read


def _dataclass_fields(kind: Any, origin: Any) -> list[Field]:
    hints = _hints(kind, origin)
    found = [
        Field(each.name, hints[each.name], each.default is each.default_factory is MISSING)
        for each in fields(origin)
        if each.init
    ]
    _check_constructor(origin, {each.name for each in found})
    return found


def _check_constructor(origin: Any, names: set[str]) -> None:
    taken = inspect.signature(origin).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in taken):
        return
    needed = {each.name for each in taken if each.default is each.empty}
    unknown = needed - names | names - {each.name for each in taken}
    if unknown:
        raise UnreadableTypeError(
            f"{origin.__name__} is not read from JSON: its constructor must take its fields, and "
            f"{', '.join(sorted(unknown))} is only in one of them"
        )


def _typed_dict_fields(kind: Any, origin: Any) -> list[Field]:
    found = []
    for name, hint in _hints(kind, origin).items():
        # A class in a module with `from __future__ import annotations` does not know it itself.
        is_required = name in origin.__required_keys__
        while get_origin(hint) in (Required, NotRequired):
            is_required = get_origin(hint) is Required
            [hint] = get_args(hint)
        found.append(Field(name, hint, is_required))
    return found


def _hints(kind: Any, origin: Any) -> dict[str, Any]:
    """With the types that `kind`, or a base of it, is generic for, as in Page[Debit]."""
    bound = _bound(kind)
    hints = get_type_hints(origin, localns={origin.__name__: origin}, include_extras=True)
    return {name: _substituted(hint, bound.get(name, {})) for name, hint in hints.items()}


def _bound(kind: Any) -> dict[str, dict[Any, Any]]:
    """What stands for type variables, by the fields: a base may have other ones for its own."""
    origin = get_origin(kind) or kind
    names = _declared(origin)
    own = dict(zip(getattr(origin, "__parameters__", ()), get_args(kind), strict=False))
    bound = dict.fromkeys(names, own)
    bases = vars(origin).get("__orig_bases__") or getattr(origin, "__bases__", ())
    for base in reversed(bases):
        inherited = _declared(get_origin(base) or base)
        of_base = _bound(_substituted(base, own)) if inherited else {}
        bound |= {name: of_base[name] for name in of_base if inherited[name] is names[name]}
    return bound


def _declared(origin: Any) -> dict[str, Any]:
    """The fields of a model with their declarations, those that it inherits included."""
    if is_typed_dict(origin):
        return dict.fromkeys(origin.__annotations__)
    return getattr(origin, "__dataclass_fields__", {})


def _substituted(hint: Any, bound: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not bound or not parameters:
        return hint
    return hint[tuple(bound.get(each, each) for each in parameters)]
