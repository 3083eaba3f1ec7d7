"""Functions that can be handlers. Pure."""

import inspect
import sys
from typing import Any


def check_callable(
    function: object, what: str, arguments: tuple[str, ...] = ("command", "context")
) -> None:
    if not callable(function):
        raise ValueError(f"{what} must be callable, not {function!r:.80}")
    code = inspect.unwrap(function)
    code = code if inspect.isroutine(code) else getattr(code, "func", code.__call__)
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise ValueError(
            f"{what}, {name_of(function)}, is async: handlers are ordinary functions; "
            f"call asyncio.run() inside one if it must await something"
        )
    if inspect.isgeneratorfunction(code):
        raise ValueError(f"{what}, {name_of(function)}, is a generator: return the result instead")
    check_arguments(function, what, arguments)


def check_arguments(
    function: object, what: str, arguments: tuple[str, ...] = ("command", "context")
) -> None:
    try:
        signature_of(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{what} is called with ({', '.join(arguments)}): {error}") from None
    except ValueError:
        pass  # Some builtins have no signature.


def signature_of(function: Any) -> inspect.Signature:
    """Also while types of its annotations do not exist."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def name_of(function: object) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
