"""Arrays in the server's binary format, as the server reads them."""

from uuid import uuid4

import psycopg
import pytest

from cmdbus.arrays import packed_ctids, packed_ids
from cmdbus.database.adapters import own_cursor

pytestmark = pytest.mark.new_database


@pytest.mark.parametrize("count", [0, 1, 300])
def test_the_server_reads_packed_arrays(connection: psycopg.Connection, count: int) -> None:
    ids = [uuid4() for _ in range(count)]
    ctids = [block.to_bytes(4, "big") + b"\0\x07" for block in range(count)]
    values = (packed_ids(ids), packed_ctids(ctids))
    row = own_cursor(connection).execute("SELECT %s::uuid[], %s::tid[]", values).fetchone()
    assert row == (ids, [f"({block},7)" for block in range(count)])
