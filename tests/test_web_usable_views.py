"""Each view of the operators' page, on the day of a shop: for all people, at any width."""

from pathlib import Path

import pytest
from page_processes import page_server
from shop_days import Shop
from visits import Visiting

#: Many views: on a busy machine each takes some seconds.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

#: The narrowest screen on which the page is used.
_NARROW = 380
_WIDTHS = (360, _NARROW, 500, 630, 760, 825, 900, 1000, 1100)


def views_of(shop: Shop) -> dict[str, str]:
    """What is seen in each view."""
    day = shop.day
    return {
        "#/overview": "payments",
        "#/fleet": "gone",
        "#/commands": "Newsletter",
        "#/commands?domain=payments&status=FAILED": "LIMIT_EXCEEDED",
        f"#/command/stock/{day.completed}": "customer-7",
        f"#/command/parcels/{day.failing}": "CARRIER_AWAY",
        f"#/command/reports/{day.running}": "in progress",
        "#/troubleshooting": "CARD_EXPIRED",
        "#/batches": "November newsletter",
        f"#/batch/{day.batch}": "November newsletter",
        "#/processes": "Purchase",
        f"#/process/{day.purchases['undone']}": "compensated",
        f"#/process/{day.purchases['stopped']}": "CHARGE",
        "#/limits": "printer",
        "#/breakers": "bank",
        "#/schedules": "nightly-close",
        "#/domain/payments": "5,000",
    }


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", _NARROW), ("dark", _NARROW)]
)
def test_each_view_can_be_used_by_all_people_and_does_not_jump(
    visiting: Visiting, shop: Shop, tmp_path: Path, scheme: str, width: int
) -> None:
    problems = []
    with page_server(shop.dsn, tmp_path) as page:
        for view, text in views_of(shop).items():
            with visiting(page, scheme=scheme, width=width) as visit:
                visit.open(view).sees(text, "#view")
                visit.settles()
                found = [*visit.barriers(), *visit.shifts()]
                problems += [f"{view}: {problem}" for problem in [*found, *visit.complaints]]
                visit.complaints.clear()
    assert not problems, "\n".join(problems)


def test_no_view_is_wider_than_the_window(visiting: Visiting, shop: Shop, tmp_path: Path) -> None:
    problems = []
    with page_server(shop.dsn, tmp_path) as page, visiting(page) as visit:
        for view, text in views_of(shop).items():
            visit.open(view).sees(text, "#view")
            for width in _WIDTHS:
                visit.tab.set_viewport_size({"width": width, "height": 800})
                visit.settles()
                if (wide := visit.read("document.documentElement.scrollWidth")) > width:
                    problems.append(f"{view}: {wide} pixels at {width}")
    assert not problems, "\n".join(problems)
