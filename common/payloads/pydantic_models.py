"""Models of pydantic: found by what they are, so that it is imported by no program but one that
uses it. Pure."""

import json
from functools import cache, lru_cache
from typing import Any

from cmdbus.payloads.mismatch import Mismatch, Outcomes, Reader, UnreadableTypeError, refused
from cmdbus.payloads.pydantic_forms import HIDDEN, Form, form_of_model, hidden_in

#: 2.4 cannot read some types from JSON; those before also dump what they compute.
_OLDEST = (2, 5)
_AS_IT_IS = Form(by_alias=True, may_hide=False)


def is_pydantic(kind: type) -> bool:
    """Whether it is a model or a dataclass of pydantic 2."""
    return hasattr(kind, "__pydantic_validator__")


def dump(value: Any, read_again: bool) -> Any:
    """Without what it computes, under its aliases. If its own type is to read that again: under
    names that this reads, and a ValueError if it cannot."""
    kind: Any = type(value)
    form = _form(kind) if read_again else _AS_IT_IS
    dumped = _adapter(kind).dump_python(value, mode="json", by_alias=form.by_alias, round_trip=True)
    if form.may_hide and (where := hidden_in(dumped)) is not None:
        raise ValueError(f"{kind.__name__}{where} {HIDDEN}")
    return dumped


def check_dumped(kind: Any) -> None:
    """A ValueError if this type does not read what is dumped of its values; a NameError if a type
    that it names does not exist yet."""
    if isinstance(kind, type) and is_pydantic(kind):
        _complete(kind)
        _form(kind)


def pydantic_reader(kind: type, outcomes: Outcomes) -> Reader:
    """A NameError if a type that the model names does not exist yet."""
    _complete(kind)
    adapter, invalid = _adapter(kind), _pydantic().ValidationError

    def read(data: Any) -> Any:
        try:
            # By the rules for JSON, in which strict models take text for times and numbers.
            return adapter.validate_json(json.dumps(data))
        except invalid as error:
            raise _mismatch(error) from None
        except outcomes:
            raise
        except Exception as error:
            raise refused(kind.__name__, error) from error

    return read


def _complete(kind: Any) -> None:
    if kind.__pydantic_complete__:
        return
    pydantic = _pydantic()
    try:
        if pydantic.dataclasses.is_pydantic_dataclass(kind):
            pydantic.dataclasses.rebuild_dataclass(kind)
        else:
            kind.model_rebuild()
    except pydantic.PydanticUndefinedAnnotation as error:
        raise NameError(f"name {error.name!r} is not defined", name=error.name) from None


@lru_cache(maxsize=1024)
def _adapter(kind: Any) -> Any:
    return _pydantic().TypeAdapter(kind)


@lru_cache(maxsize=1024)
def _form(kind: Any) -> Form:
    return form_of_model(kind)


@cache
def _pydantic() -> Any:
    import pydantic

    check_version(pydantic.VERSION)
    return pydantic


def check_version(version: str) -> None:
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UnreadableTypeError(
            f"pydantic {version} is installed, and cmdbus takes models of {oldest} or later: "
            f"pip install -U pydantic"
        )


def _mismatch(error: Any) -> Mismatch:
    """The first error, without the value: that may be confidential."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    others = error.error_count() - 1
    more = f" (and {others} more)" if others else ""
    return Mismatch(f"does not fit: {first['msg']}{more}", *first["loc"])
