"""The shop whose day tests of the operators' page look at."""

import pytest
from lab.shop_day import unsettled
from shop_days import Shop

from cmdbus import CommandBus


@pytest.mark.long
def test_a_day_of_the_shop_has_something_in_each_state(shop: Shop) -> None:
    with CommandBus(shop.dsn) as bus:
        assert unsettled(bus, shop.day) == []
        assert {record.status.value for record in bus.query(limit=1000)} == {
            *["PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELED"],
            "IN_TROUBLESHOOTING_QUEUE",
        }
