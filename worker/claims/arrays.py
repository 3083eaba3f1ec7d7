"""Arrays as text that the server reads: the driver's own way of writing them is a quarter of
the time of a settlement with its claim (measured with 100 outcomes in each). Pure."""

from collections.abc import Iterable
from uuid import UUID


def numbers(values: Iterable[float | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def ids(values: Iterable[UUID]) -> str:
    return "{" + ",".join([value.hex for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    return (
        "{"
        + ",".join(
            [
                "NULL"
                if value is None
                else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
                for value in values
            ]
        )
        + "}"
    )
