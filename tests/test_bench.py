"""scripts/bench: what it prints and how it ends. How fast anything is, is not for a test."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from eventually import eventually

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
BENCH = SCRIPTS / "bench"
SENDING = ["enqueue", "enqueue-bulk", "enqueue-concurrent", "enqueue-concurrent-armed"]
RATES = ["drain", "tx", "io", "io-long"]
TIMES = ["mixed", "latency"]
SCENARIOS = [*SENDING, *RATES, *TIMES, "bloat", "drain-wide", "idle"]
SHORT = ["--seconds", "0.02", "--rounds", "2"]
TINY = [*SHORT, "--rows", "200", "--processes", "2", "--threads", "2", "--commands", "200"]
#: Seconds; several times the usual, for a busy machine that measures coverage.
WITHIN_S = 80

pytestmark = [
    pytest.mark.timeout(WITHIN_S + 10),
    pytest.mark.skipif(not BENCH.exists(), reason="needs the checkout's scripts"),
]


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that turns rounds into a result."""
    monkeypatch.syspath_prepend(SCRIPTS)
    before = set(sys.modules)
    yield importlib.import_module("benches.comparison")
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "benches":
            del sys.modules[name]


@pytest.mark.db
@pytest.mark.process
@pytest.mark.parametrize("name", [*SENDING, *RATES])
def test_a_scenario_prints_one_line_and_exits_by_its_ratio(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    assert line["unit"] == "commands/s"
    assert line["figure"] > 0
    assert line["baseline"] > 0
    assert line["configuration"]["rounds"] == (1 if name == "io-long" else 2)


@pytest.mark.db
@pytest.mark.process
@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_better_the_further_it_is_below_its_bound(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    times = line["configuration"]
    assert line["unit"] == "ms"
    assert line["figure"] in (
        pytest.approx(times["p50_ms"], abs=0.06),
        pytest.approx(times["p99_ms"], abs=0.06),
    )
    assert (line["ratio"] >= 1) == (line["figure"] <= line["baseline"])


@pytest.mark.db
@pytest.mark.process
def test_growing_crews_are_judged_by_the_worst_of_their_doublings(dsn: str) -> None:
    line = the_line_of("drain-wide", dsn, "--rounds", "1")
    found = line["configuration"]
    assert set(found["figures"]) == {"1x8", "2x8", "2x16", "2x32", "4x16"}
    assert len(found["doublings"]) == 4
    assert line["ratio"] == min(found["doublings"].values()) == found["doublings"][found["worst"]]


@pytest.mark.db
@pytest.mark.process
def test_what_an_idle_worker_sends_only_informs(dsn: str) -> None:
    line = the_line_of("idle", dsn)
    assert (line["unit"], line["limit"], line["ok"]) == ("statements/s", None, True)
    assert line["figure"] >= 0
    assert "pg_stat_database" in line["configuration"]["counted"]


@pytest.mark.db
@pytest.mark.process
def test_a_drain_held_back_by_a_snapshot_says_whether_it_is_flat(dsn: str) -> None:
    line = the_line_of("bloat", dsn)
    assert line["configuration"]["commands"] == 750
    assert line["configuration"]["last_third_to_first"] > 0


@pytest.mark.db
@pytest.mark.process
def test_several_scenarios_end_with_a_table(dsn: str) -> None:
    done = run("enqueue", "enqueue-bulk", "--dsn", dsn, *TINY, "--repeat", "2", "--markdown")
    assert done.returncode in (0, 1), done.stderr
    *results, header, rule, one, two = done.stdout.splitlines()
    assert [json.loads(line)["configuration"]["repeat"] for line in results] == [2, 2]
    assert header.startswith("| scenario | figure | baseline |")
    assert set(rule) == set("| -")
    assert [line.split(" | ")[0] for line in (one, two)] == ["| enqueue", "| enqueue-bulk"]


@pytest.mark.db
@pytest.mark.process
def test_an_interrupted_bench_drops_its_database(dsn: str) -> None:
    arguments = ["enqueue-concurrent", "--dsn", dsn, *TINY, "--rounds", "100000"]
    with subprocess.Popen(
        [sys.executable, BENCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            name = f"cmdbus_bench_{process.pid}_%"
            eventually(lambda: databases_of_benches(dsn, name), WITHIN_S)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
    assert process.returncode == 130, said.decode()
    assert not databases_of_benches(dsn, name)


def test_a_server_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = run("enqueue", "--dsn", f"host={tmp_path} dbname=nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: cannot connect to database 'nothing'")


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    done = run("enqueu")
    assert (done.returncode, done.stdout) == (2, "")
    assert all(name in done.stderr for name in [*SCENARIOS, "all"])


@pytest.mark.parametrize(
    ("ratio", "limit", "ok"),
    [(0.6, 0.6, True), (0.5999, 0.6, False), (1.3, 0.6, True), (0.01, None, True)],
)
def test_a_ratio_is_compared_with_its_limit(
    comparison: ModuleType, ratio: float, limit: float | None, ok: bool
) -> None:
    assert comparison.reached(ratio, limit) is ok


def test_the_ratio_is_the_median_of_the_rounds(comparison: ModuleType) -> None:
    pairs = ((100.0, 70.0), (10.0, 8.0), (200.0, 100.0))
    assert summary(comparison, [pairs]) == {
        "scenario": "name",
        "figure": 70.0,
        "baseline": 100.0,
        "unit": "things/s",
        "ratio": 0.7,
        "spread": [0.5, 0.8],
        "limit": 0.75,
        "goal": None,
        "ok": False,
    }


def test_the_spread_of_repeated_runs_is_that_of_their_medians(comparison: ModuleType) -> None:
    runs = [((10.0, 7.0), (10.0, 9.0), (10.0, 8.0)), ((10.0, 6.0),), ((10.0, 9.0),)]
    found = summary(comparison, runs)
    assert (found["ratio"], found["spread"], found["ok"]) == (0.8, [0.6, 0.9], True)


def test_rounds_alternate_and_swap_their_order(comparison: ModuleType) -> None:
    called = []

    def side(name: str, rate: float) -> Any:
        def round_(seconds: float) -> float:
            called.append(name)
            return rate

        return round_

    sizes = comparison.Sizes(seconds=1.0, rounds=3, rows=1, processes=1, threads=1)
    place = comparison.Place(dsn="", sizes=sizes)
    found = place.compare(side("baseline", 4.0), side("measured", 3.0), payload_bytes=7)
    assert "".join(name[0] for name in called) == "bm" + "bm" + "mb" + "bm"
    assert found.pairs == ((4.0, 3.0),) * 3
    assert found.configuration == {"payload_bytes": 7}


def summary(comparison: ModuleType, runs: list[tuple[tuple[float, float], ...]]) -> Any:
    scenario = comparison.Scenario(
        name="name", measure=lambda place: None, unit="things/s", limit=0.75, goal=None
    )
    return comparison.summarize(scenario, [comparison.Comparison(pairs=pairs) for pairs in runs])


def the_line_of(name: str, dsn: str, *more: str) -> Any:
    """What every scenario's line has in common is asserted here."""
    done = run(name, "--dsn", dsn, *TINY, *more, "--json")
    assert done.stdout, done.stderr
    line, last = map(json.loads, done.stdout.splitlines())
    assert last == {"ok": line["ok"], "results": [line]}
    assert done.returncode == (0 if line["ok"] else 1), done.stderr
    assert line["scenario"] == name
    assert line["ok"] == (line["limit"] is None or line["ratio"] >= line["limit"])
    low, high = line["spread"]
    assert low <= line["ratio"] <= high
    assert {"server": "given", "repeat": 1, "seconds": 0.02}.items() <= (
        line["configuration"].items()
    )
    assert set(line["versions"]) == {"cmdbus", "python", "postgresql", "psycopg"}
    assert all(line["versions"].values())
    return line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCH, *arguments],
        cwd=os.sep,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def databases_of_benches(dsn: str, name: str) -> list[str]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE %s", (name,))
        return [datname for (datname,) in found]
