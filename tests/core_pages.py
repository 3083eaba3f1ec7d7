"""A page whose parts tests use by themselves."""

from collections.abc import Iterator

import pytest
from page_servers import page_with
from visits import Visit, Visiting

#: A module in the place of a view, so that tests have its parts.
_EMPTY_VIEW = """
export const title = () => "Empty";
export async function show(root) { window.root = root; return {close() {}}; }
"""
#: The address of the page's own script, below which its modules are.
_APP = "document.querySelector('script[type=module]').src"
_MODULES = (
    *("api", "charts", "dialog", "dom", "format", "keys", "live", "parts", "router", "table"),
    "view",
)


@pytest.fixture
def page(visiting: Visiting) -> Iterator[Visit]:
    """An empty view; all modules of the core are in `window`, under their names."""
    with page_with(visiting, {}, {"empty": _EMPTY_VIEW}) as visit:
        visit.open("#/empty").sees("Empty", "h1")
        for name in _MODULES:
            visit.read(
                f"import(new URL('core/{name}.js', {_APP})).then((it) => {{ window.{name} = it }})"
            )
        yield visit
