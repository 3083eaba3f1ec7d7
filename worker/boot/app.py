"""The user's handlers, found by MODULE:REGISTRY. Runs the user's code: only in children."""

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cmdbus.app_errors import app_error
from cmdbus.checks import did_you_mean
from cmdbus.errors import AppError, CronMissingError
from cmdbus.registry import HandlerRegistry
from cmdbus.worker.monkey_patches import patched

_APP = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<path>\w+(\.\w+)*)")
_FILE = re.compile(r"(?:\./)?(?P<module>\w+(/\w+)*)\.py(?::(?P<path>.*))?")


def load(app: str | None) -> HandlerRegistry:
    """The registry, or the result of a callable without arguments in its place. An AppError names
    the missing part and the nearest name."""
    if app is None:
        raise AppError(
            "there are no handlers to run: name them with --app MODULE:REGISTRY "
            "(the demo runs where no database is named either)"
        )
    found = _APP.fullmatch(app)
    if not found:
        raise AppError(f"the app must be MODULE:REGISTRY, {_suggested(app)}, not {app!r:.200}")
    module = _module(found["module"])
    value = _attribute(module, found["module"], found["path"])
    if not isinstance(value, HandlerRegistry) and callable(value):
        _refuse_handler(app, value, module)
        value = _made(app, value)
    if sentence := patched():
        raise AppError(sentence)
    if not isinstance(value, HandlerRegistry):
        raise AppError(f"{app} is of type {type(value).__name__}, and must be a HandlerRegistry")
    if not len(value):
        raise AppError(
            f"{app} has no handlers: the modules that register them must be imported, too"
        )
    try:
        value.declarations()
    except ValueError as error:
        raise AppError(f"{app}: {error}") from None
    return value


def hint(name: str, names: Iterable[str]) -> str:
    """`: did you mean 'x'?`, or nothing."""
    question = did_you_mean(name, names)
    return f": {question}" if question else ""


def _suggested(app: str) -> str:
    found = _FILE.fullmatch(app)
    module = found["module"].replace("/", ".") if found else "shop.handlers"
    return f"for example {module}:{(found and found['path']) or 'registry'}"


def _module(name: str) -> Any:
    try:
        working = str(Path.cwd())
    except OSError as error:
        raise AppError(
            f"{name} cannot be imported: the working directory of this process is gone "
            f"({error.strerror}); start it in one that exists"
        ) from None
    if working not in sys.path:
        sys.path.insert(0, working)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != name and not name.startswith(f"{missing}."):
            raise app_error(f"importing {name}", error, __file__) from error
        parent = missing.rpartition(".")[0]
        inside = f"in {parent}" if parent else f"in {working} or where Python looks"
        near = hint(missing, _neighbours(parent))
        raise AppError(f"there is no module {missing!r} {inside}{near}") from None
    except CronMissingError as error:
        raise AppError(f"{name}: {error}") from None
    except (Exception, SystemExit) as error:
        raise app_error(f"importing {name}", error, __file__) from error


def _neighbours(parent: str) -> list[str]:
    places = getattr(sys.modules.get(parent), "__path__", []) if parent else None
    prefix = f"{parent}." if parent else ""
    return [prefix + module.name for module in pkgutil.iter_modules(places)]


def _attribute(module: Any, name: str, path: str) -> Any:
    value, reached = module, f"module {name!r}"
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            near = _hidden(name) or hint(part, dir(value)) or _registries(value)
            raise AppError(f"{reached} has no {part!r}{near}") from None
        reached = f"{reached}.{part}" if ":" in reached else f"{name}:{part}"
    return value


def _hidden(name: str) -> str:
    """A module of Python or of a package may have the name of the application's file."""
    file = Path(*name.split(".")).with_suffix(".py").absolute()
    imported = getattr(sys.modules[name], "__file__", None)
    if not file.exists() or (imported and file.samefile(imported)):
        return ""
    return f": it is {imported or 'built into Python'}; give {file} another name"


def _registries(value: object) -> str:
    names = ", ".join(_held(value))
    return f": its registries are {names}" if names else ""


def _held(value: object) -> dict[str, HandlerRegistry]:
    """Its attributes that are registries."""
    attributes = getattr(value, "__dict__", {})
    return {name: each for name, each in attributes.items() if isinstance(each, HandlerRegistry)}


def _refuse_handler(app: str, value: object, module: Any) -> None:
    for name, registry in _held(module).items():
        if any(handler.function is value for handler in registry):
            raise AppError(
                f"{app} is a handler, and must be the registry that holds it: "
                f"{app.partition(':')[0]}:{name}"
            )


def _made(app: str, factory: Callable[[], object]) -> object:
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise AppError(f"{app} is called without arguments to make the registry: {error}") from None
    except ValueError:
        pass  # Some builtins have no signature.
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise app_error(f"calling {app}", error, __file__) from error
    if inspect.iscoroutine(made):
        made.close()
        raise AppError(f"{app} is async: make it an ordinary function")
    return made
