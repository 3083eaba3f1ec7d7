"""The databases that tests get."""

import psycopg
import pytest
from databases import Databases


def used(databases: Databases, template: str, *queries: str) -> str:
    """The name of a database in which these were executed, and rolled back."""
    with (
        databases.fresh(template) as name,
        psycopg.connect(databases.dsn_of(name)) as connection,
    ):
        for query in queries:
            connection.execute(query.encode())
        connection.rollback()
    return name


def test_one_in_which_nothing_was_written_is_given_to_the_next_test(
    databases: Databases, template: str
) -> None:
    """Unless the server itself has written something meanwhile."""
    names = [used(databases, template, "SELECT * FROM cmdbus.command") for _ in range(5)]
    assert len({*names}) < 5


@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO effect DEFAULT VALUES",
        "SELECT nextval('cmdbus.ready_id_seq')",
        "COMMENT ON SCHEMA cmdbus IS 'seen'",
    ],
)
def test_one_in_which_something_was_written_is_not(
    databases: Databases, template: str, write: str
) -> None:
    assert used(databases, template, write) != used(databases, template)
