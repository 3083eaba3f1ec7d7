"""The operators' page with views and actions of a test's, and modules that show them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from visits import Visit, Visiting
from web_server import serving

from cmdbus import CommandBus
from cmdbus.web.action import Action
from cmdbus.web.view import Views
from cmdbus.web.wsgi import Application

if TYPE_CHECKING:
    from playwright.sync_api import Route

_NOWHERE = "host=/nonexistent"


@contextmanager
def page_server(
    views: Views,
    actions: Mapping[str, Action] | None = None,
    *,
    operator: str | None = None,
    is_threaded: bool = True,
    port: int = 0,
) -> Iterator[str]:
    """The address of a page that has these views alone. Its bus has no database."""
    with CommandBus(_NOWHERE) as bus:
        application = Application(bus, views, actions or {}, role="operator", operator=operator)

        def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            return application({**environ, "wsgi.multithread": is_threaded}, start_response)

        try:
            with serving(served, port=port) as server:
                yield f"http://127.0.0.1:{server.address[1]}"
        finally:
            application.close()


def show_by(visit: Visit, modules: Mapping[str, str]) -> None:
    """The views are shown by these sources of JavaScript, by their names."""

    def answering(source: str) -> "Callable[[Route], None]":
        return lambda route: route.fulfill(body=source, content_type="text/javascript")

    for name, source in modules.items():
        visit.tab.route(f"**/static/*/views/{name}.js", answering(source))


@contextmanager
def page_with(
    visiting: Visiting,
    views: Views,
    modules: Mapping[str, str],
    actions: Mapping[str, Action] | None = None,
    *,
    operator: str | None = None,
    is_threaded: bool = True,
    **options: Any,
) -> Iterator[Visit]:
    """A visit of such a page; the `options` are those of the visit."""
    with (
        page_server(views, actions, operator=operator, is_threaded=is_threaded) as address,
        visiting(address, **options) as visit,
    ):
        show_by(visit, modules)
        yield visit
