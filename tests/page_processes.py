"""The operators' page of a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.page_server import PageServer
from lab.page_server import page_server as started_page_server


@contextmanager
def page_server(dsn: str, place: Path, *options: str, **environment: str) -> Iterator[str]:
    """The address of one, whose output is shown if the test fails."""
    with page_process(dsn, place, *options, **environment) as (address, _):
        yield address


@contextmanager
def page_process(
    dsn: str, place: Path, *options: str, **environment: str
) -> Iterator[tuple[str, PageServer]]:
    output = place / "page.log"
    try:
        with started_page_server(dsn, output, *options, environment=environment) as server:
            yield server
    finally:
        print(output.read_text()[-5_000:])
