"""The database's errors as sentences, for people at a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cmdbus.errors import CmdbusError
from cmdbus.printable import joined


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Errors of the driver become CmdbusErrors."""
    try:
        yield
    except psycopg.Error as error:
        raise CmdbusError(f"the database answered: {primary_message(error)}") from None


def primary_message(error: psycopg.Error) -> str:
    return error.diag.message_primary or joined(str(error)) or type(error).__name__
