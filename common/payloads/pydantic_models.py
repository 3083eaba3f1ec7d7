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
    from pydantic import ValidationError

    adapter = _adapter(kind)

    def read(data: Any) -> Any:
        try:
            # By the rules for JSON, in which strict models take text for times and numbers.
            return adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            raise _mismatch(error) from None

    return read


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
