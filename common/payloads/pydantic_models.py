"""Models of pydantic: found by what they are, so that it is imported by no program but one that
uses it. Pure."""

import json
from functools import lru_cache
from typing import Any

from cmdbus.payloads.mismatch import Mismatch, Reader


def is_pydantic(kind: type) -> bool:
    """Whether it is a model or a dataclass of pydantic 2."""
    return hasattr(kind, "__pydantic_validator__")


def dump(value: Any) -> Any:
    """Under the names by which it validates, and without what it computes."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json", by_alias=True, round_trip=True)


def pydantic_reader(kind: type) -> Reader:
    """A NameError if a type that the model names does not exist yet."""
    from pydantic import ValidationError

    _complete(kind)
    adapter = _adapter(kind)

    def read(data: Any) -> Any:
        try:
            # By the rules for JSON, in which strict models take text for times and numbers.
            return adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            raise _mismatch(error) from None

    return read


def _complete(kind: Any) -> None:
    if kind.__pydantic_complete__:
        return
    from pydantic import PydanticUndefinedAnnotation
    from pydantic.dataclasses import is_pydantic_dataclass, rebuild_dataclass

    try:
        if is_pydantic_dataclass(kind):
            rebuild_dataclass(kind)
        else:
            kind.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise NameError(f"name {error.name!r} is not defined", name=error.name) from None


@lru_cache(maxsize=1024)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _mismatch(error: Any) -> Mismatch:
    """The first error, without the value: that may be confidential."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    return Mismatch(f"does not fit: {first['msg']}{more}", *first["loc"])
