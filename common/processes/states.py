"""The types of managers' states, and how a state of one is read again. Pure."""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_origin
from typing import is_typeddict as is_typed_dict

from cmdbus.payloads.mismatch import Mismatch, Reader, UnreadableTypeError
from cmdbus.payloads.models import model_of
from cmdbus.payloads.pydantic_models import is_pydantic
from cmdbus.payloads.readers import name_of, reader_of


def state_type_of(declared: Any) -> Any:
    """What is declared, if it is a dataclass, a TypedDict or a model of pydantic; else dict."""
    origin = get_origin(declared) or declared
    is_model = is_dataclass(origin) or is_typed_dict(origin) or is_pydantic(origin)
    return declared if isinstance(origin, type) and is_model else dict


@cache
def class_of(state_type: Any) -> type[Any]:
    """That of its values."""
    origin: Any = get_origin(state_type) or state_type
    return dict if is_typed_dict(origin) else origin


@cache
def state_reader(state_type: Any) -> Reader:
    """An UnreadableTypeError if no state of this type can be read again; a NameError while a type
    that it names does not exist."""
    read = reader_of(state_type)
    model = None if is_pydantic(state_type) else model_of(state_type)
    if model is None:
        return read
    _check_constructor(state_type)
    known = {field.name for field in model.fields}

    def read_all(data: Any) -> Any:
        """What it does not know would be lost when the state is written again."""
        if type(data) is dict and (unknown := data.keys() - known):
            raise Mismatch(f"is no field of {model.name}", min(unknown))
        return read(data)

    return read_all


def _check_constructor(state_type: Any) -> None:
    origin = class_of(state_type)
    for field in fields(origin) if is_dataclass(origin) else ():
        if not field.init:
            raise UnreadableTypeError(f"field {field.name} of {name_of(state_type)} has init=False")
