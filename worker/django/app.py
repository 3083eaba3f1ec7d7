"""The app of a fleet that is given no other: `cmdbus.django.app:registry`."""

from functools import cache

from django.conf import settings

from cmdbus.registry import HandlerRegistry

_OWN = f"{__name__}:registry"


def __getattr__(name: str) -> object:
    if name != "registry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _registry()


@cache
def _registry() -> HandlerRegistry:
    """The one that the setting CMDBUS_APP names or, without it, one with a handler of each task."""
    registry = HandlerRegistry(django=True)  # sets Django up
    app = getattr(settings, "CMDBUS_APP", None)
    if app in (None, _OWN):
        return registry
    from cmdbus.worker.boot.app import load

    return load(str(app))
