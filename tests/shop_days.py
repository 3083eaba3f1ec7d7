"""Databases in which a fleet of the shop has worked for a moment: something to see in each view."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from databases import Databases
from eventually import eventually
from fleet import Fleet, unstarted, write_app
from lab.shop_day import ShopDay, send_shop_day, unsettled

from cmdbus import CommandBus

_SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
_APP = f"""
import sys
sys.path.append({str(_SCRIPTS)!r})
from lab.shop import registry as registry
"""
#: So many threads that commands which last leave some free.
_OPTIONS = {"procs": 2, "threads": 8, "statement_timeout": 25, "pool_timeout": 30}
_OPTIONS |= {"visibility_timeout": 30, "thread_timeout": 35, "watchdog_timeout": 60}
#: A lease that outlives the fleet for as long as any test takes.
_LASTING = {"visibility_timeout": 3000, "thread_timeout": 3500, "watchdog_timeout": 4000}
_SETTLED_S = 40.0


@dataclass(frozen=True, slots=True)
class Shop:
    """A database with a day of the shop, by its DSN; the template's by its name."""

    dsn: str
    day: ShopDay


@contextmanager
def shop_fleet(dsn: str, place: Path, **options: Any) -> Iterator[Fleet]:
    """One of the shop's, not started."""
    place.mkdir(exist_ok=True)
    write_app(place, _APP)
    with unstarted(dsn, place, **{**_OPTIONS, **options}) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def shop_template(
    databases: Databases, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """Its fleet has died, and so the commands that were running still seem to run."""
    with databases.fresh(template) as name:
        dsn = databases.dsn_of(name)
        with (
            shop_fleet(dsn, tmp_path_factory.mktemp("shop"), **_LASTING) as fleet,
            CommandBus(dsn) as bus,
        ):
            fleet.start()
            fleet.wait_until_ready()
            day = send_shop_day(bus)
            eventually(lambda: not unsettled(bus, day), _SETTLED_S)
            fleet.end()
        yield Shop(name, day)


@pytest.fixture
def shop(databases: Databases, shop_template: Shop) -> Iterator[Shop]:
    with databases.fresh(shop_template.dsn) as name:
        yield Shop(databases.dsn_of(name), shop_template.day)
