"""Makes the reader of a type, once: reading itself then inspects no types. Pure."""

import types
import typing
from collections import abc
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
)

from cmdbus.payloads.choices import (
    enum_reader,
    literal_reader,
    object_or_other_reader,
    optional_reader,
    tagged_reader,
    union_reader,
)
from cmdbus.payloads.containers import (
    dict_reader,
    fixed_tuple_reader,
    list_reader,
    open_tuple_reader,
    tuple_reader,
)
from cmdbus.payloads.mismatch import Outcomes, Reader, UnreadableTypeError
from cmdbus.payloads.models import Model, model_of, model_reader
from cmdbus.payloads.pydantic_models import is_pydantic, pydantic_reader
from cmdbus.payloads.scalars import SCALARS, as_is

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
#: Those of typing may stand without brackets. Its arguments are those of the empty one.
_BARE_TUPLE: Any = typing.Tuple  # noqa: UP006


def reader_of(kind: Any, outcomes: Outcomes = ()) -> Reader:
    """Reads a value of this type from what was decoded from JSON. An UnreadableTypeError if that is
    not possible; a NameError while a type that it names does not exist. Of what models raise for
    their fields, `outcomes` are let out; anything else means that the data does not fit."""
    return _Readers(outcomes).of(kind)


def name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


class _Readers:
    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        #: Readers of models by their types; that of a model which contains itself also while it is
        #: being made.
        self._models: dict[Any, Reader] = {}

    def of(self, kind: Any) -> Reader:
        kind = _bare(kind)
        if read := _scalar(kind):
            return read
        origin, args = get_origin(kind), get_args(kind)
        if origin is Literal:
            return literal_reader(args)
        if origin in (Union, types.UnionType):
            return self._union(args)
        if kind in (tuple, _BARE_TUPLE):
            return tuple_reader(as_is)
        if origin is tuple:
            return self._tuple(args)
        if origin in _LISTS:
            [of_item] = args or (Any,)
            return list_reader(self.of(of_item))
        if origin in _DICTS:
            key, of_value = args or (str, Any)
            return dict_reader(self._key(key, kind), self.of(of_value))
        if isinstance(kind, type) and issubclass(kind, Enum):
            return enum_reader(kind)
        if is_pydantic(kind):
            return pydantic_reader(kind, self._outcomes)
        if kind in self._models:
            return lambda data: self._models[kind](data)
        model = model_of(kind)
        if model is None:
            raise UnreadableTypeError(_refusal(kind))
        return self._model(kind, model)

    def _model(self, kind: Any, model: Model) -> Reader:
        self._models[kind] = as_is  # Until the line below: what contains it finds it at a read.
        readers = {}
        for field in model.fields:
            try:
                readers[field.name] = self.of(field.kind)
            except UnreadableTypeError as error:
                raise UnreadableTypeError(f"{model.name}.{field.name}: {error}") from None
        self._models[kind] = model_reader(model, readers, self._outcomes)
        return self._models[kind]

    def _tuple(self, args: tuple[Any, ...]) -> Reader:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple_reader(self.of(args[0]))
        unpacked = [*map(_unpacked, args)]
        for index, inside in enumerate(unpacked):
            if inside is not None and len(inside) == 2 and inside[1] is Ellipsis:
                first, last = self._items(args[:index]), self._items(args[index + 1 :])
                return open_tuple_reader(first, self.of(inside[0]), last)
        return fixed_tuple_reader(self._items(args))

    def _items(self, args: tuple[Any, ...]) -> list[Reader]:
        """Of a tuple, in which others may be unpacked."""
        found = []
        for each in args:
            inside = _unpacked(each)
            found += [self.of(each)] if inside is None else self._items(inside)
        return found

    def _key(self, kind: Any, whole: Any) -> Reader:
        bare = _bare(kind)
        is_text = bare in (str, Any) or (isinstance(bare, type) and issubclass(bare, str))
        if not is_text and not (
            get_origin(bare) is Literal and all(isinstance(each, str) for each in get_args(bare))
        ):
            raise UnreadableTypeError(f"{whole} is not read from JSON, whose keys are text")
        return self.of(bare)

    def _union(self, args: tuple[Any, ...]) -> Reader:
        arms = [_bare(each) for each in args if each not in (None, type(None))]
        objects = [each for each in arms if _is_object(each)]
        others = [self.of(each) for each in arms if each not in objects]
        read = self._objects(objects) if objects else others.pop(0)
        if others:
            names = " or ".join(map(name_of, arms))
            read = (
                object_or_other_reader(read, union_reader(others, names))
                if objects
                else (union_reader([read, *others], names))
            )
        return optional_reader(read) if len(arms) < len(args) else read

    def _objects(self, kinds: list[Any]) -> Reader:
        return self.of(kinds[0]) if len(kinds) == 1 else self._tagged(kinds)

    def _tagged(self, kinds: list[Any]) -> Reader:
        models = [model_of(kind) for kind in kinds]
        tags = [_tags(model) if model else {} for model in models]
        for name in tags[0]:
            values = [value for each in tags for value in each.get(name, ())]
            if all(name in each for each in tags) and len(values) == len(set(values)):
                readers = [self.of(kind) for kind in kinds]
                return tagged_reader(
                    name,
                    {
                        value: read
                        for each, read in zip(tags, readers, strict=True)
                        for value in each[name]
                    },
                )
        names = " | ".join(name_of(kind) for kind in kinds)
        raise UnreadableTypeError(
            f"{names} is not read from JSON, as nothing tells the objects apart: give each a field "
            f"of one name, like kind: Literal['card']"
        )


def _scalar(kind: Any) -> Reader | None:
    try:
        return SCALARS.get(kind)
    except TypeError:
        return None  # Annotated inside it has a list, or the like.


def _tags(model: Model) -> dict[str, tuple[str, ...]]:
    """The texts of each of its fields that has only some, by the field's name."""
    kinds = {field.name: _bare(field.kind) for field in model.fields}
    return {
        name: get_args(kind)
        for name, kind in kinds.items()
        if get_origin(kind) is Literal and all(isinstance(each, str) for each in get_args(kind))
    }


def _bare(kind: Any) -> Any:
    """Without Annotated, NewType, and a name that stands for a type."""
    while True:
        if get_origin(kind) in (Annotated, Required, NotRequired):
            kind = get_args(kind)[0]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def _unpacked(kind: Any) -> tuple[Any, ...] | None:
    """The items of `*tuple[...]`; None for anything else."""
    if get_origin(kind) is Unpack:
        kind = get_args(kind)[0]
    elif not getattr(kind, "__unpacked__", False):
        return None
    return get_args(kind)


def _is_object(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return origin in _DICTS or is_pydantic(kind) or model_of(kind) is not None


def _refusal(kind: Any) -> str:
    name = name_of(kind)
    if isinstance(kind, TypeVar):
        return f"{name} stands for any type: name one in brackets, as in Page[Debit]"
    if kind in (set, frozenset) or get_origin(kind) in (set, frozenset):
        return f"{name} is not read from JSON, which has no sets: use a list"
    return (
        f"{name} is not read from JSON: use a dataclass, a TypedDict, a pydantic model, or types "
        f"of the standard library that worker/README.md lists"
    )
