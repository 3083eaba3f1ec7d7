"""What a database answers with an error, as one sentence for a person at a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cmdbus.errors import CmdbusError


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Errors of the driver become CmdbusErrors."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise CmdbusError(
            f"{_said(error)}: this database role may not do that; cmdbus init --operator ROLE "
            f"gives a role the rights of an operator"
        ) from None
    except psycopg.Error as error:
        raise CmdbusError(f"the database answered: {_said(error)}") from None


def _said(error: psycopg.Error) -> str:
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
