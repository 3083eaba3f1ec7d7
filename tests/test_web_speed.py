"""How quickly the operators' page shows what there is. Each bound holds at the best of some tries,
as the machine is busy with other tests."""

import time
from pathlib import Path

import psycopg
import pytest
from benches.paging import fill
from page_processes import page_server
from visits import Visit, Visiting

pytestmark = [pytest.mark.long, pytest.mark.new_database]

_TRIES = 7
_FIRST_PAINT_MS = 200
_ROWS, _LONG_TASK_MS = 1000, 100
_MANY, _VIEW_S = 1_000_000, 1.0
_FILLED_S = 300
#: How much longer the same work takes at the worst than at the best, because of other processes.
_SLOWDOWN = """() => {
  const took = Array.from({length: 30}, () => {
    const began = performance.now();
    for (let n = 0, sum = 0; n < 2e7; n += 1) sum += n % 7;
    return performance.now() - began;
  });
  return Math.max(...took) / Math.min(...took);
}"""
#: The last of them in the window, and back, with time for the browser to draw.
_SCROLL = """async () => {
  for (let step = 0; step <= 20; step += 1) {
    scrollTo(0, document.documentElement.scrollHeight * (step % 11) / 10);
    await new Promise(done => requestAnimationFrame(() => setTimeout(done, 20)));
  }
}"""


def test_the_first_paint_of_a_page_that_was_opened_before_takes_no_time_to_speak_of(
    visiting: Visiting, dsn: str, tmp_path: Path
) -> None:
    paints = []
    with page_server(dsn, tmp_path) as page, visiting(page) as visit:
        visit.open("#/overview").sees("Overview", "h1")
        for _ in range(_TRIES):
            visit.tab.reload()
            visit.sees("Overview", "h1")
            paints.append(visit.first_paint())
    print(f"first paints: {sorted(map(round, paints))} ms")
    assert min(paints) < _FIRST_PAINT_MS


def test_a_thousand_rows_never_keep_the_browser_busy(
    visiting: Visiting, dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(dsn) as connection:
        fill(connection, "cmdbus", 2 * _ROWS)
    longest, busy = [], []
    with page_server(dsn, tmp_path) as page:
        for _ in range(3):
            with visiting(page) as visit:
                visit.open(f"#/commands?rows={_ROWS}")
                visit.awaits(f"document.querySelectorAll('#view tbody tr').length === {_ROWS}")
                visit.read(_SCROLL)
                visit.press(*"jjjkx")
                longest.append(max(visit.long_tasks(), default=0.0))
                busy.append(visit.read(_SLOWDOWN))
    print(f"longest tasks: {longest} ms, slowed down by others: {busy}")
    assert min(took / slow for took, slow in zip(longest, busy, strict=True)) < _LONG_TASK_MS


@pytest.mark.timeout(_FILLED_S)
def test_a_million_commands_are_no_burden(visiting: Visiting, dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection, "cmdbus", _MANY)
        connection.execute("VACUUM ANALYZE")
    views = {
        "#/commands": "pending",
        "#/commands?status=FAILED": "failed",
        "#/commands?status=PENDING": "pending",
        "#/overview": "Needs attention",
        "#/troubleshooting": "Nothing waits for an operator",
    }
    with page_server(dsn, tmp_path) as page, visiting(page) as visit:
        visit.open("#/limits").sees("Limits", "h1")
        took = {
            view: min(_seconds(visit, view, text) for _ in range(3)) for view, text in views.items()
        }
        visit.open("#/commands?status=COMPLETED").sees("completed", "tbody")
        first = visit.text("tbody a")
        for _ in range(3):
            visit.find("nav[aria-label=Pages] a", "Older").click()
            visit.awaits("first => document.querySelector('tbody a')?.innerText !== first", first)
            first = visit.text("tbody a")
    print({view: round(seconds, 3) for view, seconds in took.items()})
    assert max(took.values()) < _VIEW_S


def _seconds(visit: Visit, view: str, text: str) -> float:
    visit.open("#/breakers").sees("Breakers", "h1")
    began = time.monotonic()
    visit.open(view).sees(text, "#view")
    return time.monotonic() - began
