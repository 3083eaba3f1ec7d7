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
    """A visit of a page that has these views alone. `modules` are sources of JavaScript by the
    names of their views; `options` are those of the visit. The bus has no database."""
    with CommandBus(_NOWHERE) as bus:
        application = Application(bus, views, actions or {}, role="operator", operator=operator)

        def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            return application({**environ, "wsgi.multithread": is_threaded}, start_response)

        try:
            with (
                serving(served) as server,
                visiting(f"http://127.0.0.1:{server.address[1]}", **options) as visit,
            ):
                for name, source in modules.items():
                    visit.tab.route(f"**/static/views/{name}.js*", _answering(source))
                yield visit
        finally:
            application.close()


def _answering(source: str) -> "Callable[[Route], None]":
    def answer(route: "Route") -> None:
        route.fulfill(body=source, content_type="text/javascript")

    return answer
