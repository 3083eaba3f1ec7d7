"""What a database answers with an error, as one sentence for a person at a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cmdbus.errors import CmdbusError, MissingRightError


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Errors of the driver become CmdbusErrors."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise missing_right(error) from None
    except psycopg.Error as error:
        raise CmdbusError(f"the database answered: {primary_message(error)}") from None


def missing_right(error: psycopg.errors.InsufficientPrivilege) -> MissingRightError:
    return MissingRightError(
        f"{primary_message(error)}: this database role may not do that; cmdbus init --operator "
        f"ROLE gives a role the rights of an operator (also: --producer, --worker; --monitor, for "
        f"cmdbus status, domain list and tsq summary, and for psql and exporters that name the "
        f"columns of the view command: no data, result or error_message)"
    )


def primary_message(error: psycopg.Error) -> str:
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
