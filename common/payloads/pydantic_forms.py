"""How a model of pydantic is dumped, so that its own type reads it again. Pure."""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

#: What pydantic dumps of any secret.
_ASTERISKS = "**********"
HIDDEN = (
    "is a secret, of which pydantic dumps asterisks: commands are stored as they are, so send what "
    "refers to the secret, or give the field a serializer"
)


class Form(NamedTuple):
    """Of a model's values."""

    by_alias: bool
    #: They may have secrets.
    may_hide: bool


def form_of_model(kind: Any) -> Form:
    """Under the names of serialization or, if those are not read again, under those of the fields.
    A ValueError names a field that would be read under neither."""
    parts: dict[Any, None] = {}
    may_hide = any([_is_secret(each) for each in _parts_of(kind, parts)])
    problems = [next(_unread(parts, by_alias), None) for by_alias in (True, False)]
    if all(problems):
        raise ValueError(problems[0])
    return Form(problems[0] is None, may_hide)


def hidden_in(dumped: Any) -> str | None:
    """The place of a secret in what was dumped."""
    if isinstance(dumped, dict):
        steps = ((f".{key}", item) for key, item in dumped.items())
    elif isinstance(dumped, list):
        steps = ((f"[{index}]", item) for index, item in enumerate(dumped))
    else:
        return "" if dumped == _ASTERISKS else None
    for step, item in steps:
        if (where := hidden_in(item)) is not None:
            return f"{step}{where}"
    return None


def _parts_of(kind: Any, models: dict[Any, None]) -> Iterator[Any]:
    """All types that the type names, also inside its models, which are added to `models`."""
    yield kind
    for part in get_args(kind):
        yield from _parts_of(part, models)
    if hasattr(kind, "__pydantic_validator__") and kind not in models:
        models[kind] = None
        for field in _fields(kind).values():
            yield from _parts_of(field.annotation, models)


def _is_secret(kind: Any) -> bool:
    return hasattr(kind, "get_secret_value")


def _unread(models: dict[Any, None], by_alias: bool) -> Iterator[str]:
    """What is wrong with fields that are not read under the names by which they are dumped."""
    for kind in models:
        if getattr(kind, "__pydantic_root_model__", False):
            continue
        for name, field in _fields(kind).items():
            dumped = (by_alias and field.serialization_alias) or name
            read = _names_read(field.validation_alias, name, _config(kind))
            if dumped not in read:
                names = " or ".join(map(repr, sorted(read))) or "a part of another"
                yield (
                    f"{kind.__name__}.{name} is dumped as {dumped!r}, and read as {names}: give "
                    f"it one alias, or its model populate_by_name=True"
                )
            if field.exclude and field.is_required():
                yield (
                    f"{kind.__name__}.{name} is left out of what is dumped, and must be there "
                    f"to be read: give it a default"
                )


def _names_read(alias: Any, name: str, config: dict[str, Any]) -> set[str]:
    if alias is None or not config.get("validate_by_alias", True):
        return {name}
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    # A choice of several; a path of one step is a name, too.
    choices = [[each] if isinstance(each, str) else _path(each) for each in _choices(alias)]
    return {path[0] for path in choices if len(path) == 1} | ({name} if by_name else set())


def _choices(alias: Any) -> list[Any]:
    return list(getattr(alias, "choices", [alias]))


def _path(alias: Any) -> list[Any]:
    return list(alias.path)


def _fields(kind: Any) -> dict[str, Any]:
    found = getattr(kind, "__pydantic_fields__", None)
    return dict(kind.model_fields if found is None else found)


def _config(kind: Any) -> dict[str, Any]:
    return getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
