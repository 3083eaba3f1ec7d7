"""scripts/bench: what it prints and how it ends. How fast anything is, is not for a test."""

import json
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benches import comparison, growing, tracing
from benches.peers.comparing import PEERS
from benches.peers.ours import Cmdbus
from benches.peers.times import SENT, SLEEP, count_times, read_times
from eventually import eventually
from programs import SCRIPTS, WITHIN_S, databases, interrupt, run

from cmdbus.database import schema

BENCH = SCRIPTS / "bench"
#: One of each kind runs here, and with --long those that are measured in the same ways.
RATES = ["enqueue-bulk"]
MORE_RATES = [
    *("drain", "drain-full", "enqueue", "enqueue-concurrent", "threads", "tx", "bloat"),
    *("bloat-batch", "keyed", "ordered", "io", "call", "django", "drain-watched", "otel"),
]
TIMES = ["lease-look"]
MORE_TIMES = [
    *("latency", "limited-latency", "mixed", "fair", "tick-latency", "page-first"),
    *("bridge-latency", "bridge-out-latency"),
]
OF_BRIDGES = ["bridge", "bridge-out", "bridge-drain"]
ADAPTIVE = ["adaptive-io", "adaptive-cpu", "adaptive-mixed"]
SHORT = ["--seconds", "0.02", "--rounds", "1"]
#: The first module that is missing, where it is not the system itself.
MISSING = {} if find_spec("asyncpg") else {"pgqueuer": "asyncpg"}
TINY = [*SHORT, "--rows", "2000", "--processes", "2", "--threads", "2", "--commands", "200"]
#: Rows that are filled together with another.
MORE = {
    "enqueue-concurrent": {"enqueue-concurrent-armed"},
    "drain": {"drain-cpu"},
    "drain-watched": {"drain-watched-cpu"},
    "enqueue": {"enqueue-cpu"},
    "latency": {"latency-cpu"},
    "drain-full": {"drain-full-cpu"},
    "keyed": {"keyed-cpu"},
    "ordered": {"ordered-of-bare"},
    "limited-idle": {"limited-claim"},
    "tag-idle": {"tag-claim"},
    "page-first": {"page-deep", "page-history", "page-overview", "page-first-byte"},
    "django": {"django-db-worker"},
    "otel": {"otel-cpu", "otel-unsampled", "otel-unsampled-cpu"},
    "breaker-idle": {"breaker-claim"},
    "bridge": {"bridge-cpu"},
    "bridge-out": {"bridge-out-cpu"},
    "bridge-latency": {"bridge-latency-polled"},
    "instances": {"instances-bare", "instances-of-bare", "row-waits"},
}

pytestmark = [
    pytest.mark.timeout(WITHIN_S + 10),
    pytest.mark.skipif(not BENCH.exists(), reason="needs the checkout's scripts"),
]


def more(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.process
@pytest.mark.parametrize("name", [*RATES, *more(*MORE_RATES)])
def test_a_scenario_prints_a_line_for_each_row_and_exits_by_its_ratios(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    assert line["unit"] == "commands/s"
    assert line["configuration"]["rounds"] == 1
    assert line["ratio"] > 0


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("name", OF_BRIDGES)
def test_a_bridge_is_compared_with_what_moves_as_many_messages(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    assert line["unit"] == "messages/s" and line["figure"] > 0
    assert line["configuration"]["batch"] == 100


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_range_of_threads_is_compared_with_the_best_fixed_number(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn, within=280)
    assert line["unit"] == "commands/s" and line["figure"] > 0
    assert str(line["configuration"]["best"]) in line["configuration"]["rates"]


@pytest.mark.process
@pytest.mark.parametrize("name", [*TIMES, *more(*MORE_TIMES)])
def test_a_time_is_better_the_shorter_it_is(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    assert line["unit"] == "ms"
    low, high = line["spread"]
    assert low * 0.9 <= line["baseline"] / line["figure"] <= high * 1.1


@pytest.mark.process
@pytest.mark.parametrize("name", ["idle", *more("limited-idle", "tag-idle", "breaker-idle")])
def test_an_idle_fleet_is_better_the_less_it_sends(dsn: str, name: str) -> None:
    line = the_line_of(name, dsn)
    assert line["unit"] == "statements/s"
    assert line["baseline"] == 32
    assert "pg_stat_database" in line["configuration"]["counted"]


@pytest.mark.long
@pytest.mark.process
def test_cpu_is_read_of_all_processes_while_a_drain_is_steady(dsn: str) -> None:
    """The rows that one measurement fills are printed together, whichever was requested."""
    done = run("bench", "drain-cpu", "--dsn", dsn, "--rounds", "1", "--commands", "20000")
    assert done.stdout, done.stderr
    rate, cpu = map(json.loads, done.stdout.splitlines()[:2])
    assert (rate["scenario"], cpu["scenario"]) == ("drain", "drain-cpu")
    assert cpu["unit"] == "us/command"
    assert cpu["baseline"] > 1 and cpu["figure"] > 1


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "commands"), [("instances", 8_000), ("domains", 40_000)])
def test_larger_fleets_are_compared_with_smaller_ones(dsn: str, name: str, commands: int) -> None:
    """A quick machine has drained fewer before their CPU can be read."""
    line = the_line_of(name, dsn, "--instances", "3", "--commands", f"{commands}", within=280)
    assert line["figure"] > 0 and line["baseline"] > 0


@pytest.mark.process
def test_several_scenarios_end_with_a_table(dsn: str) -> None:
    done = run(
        "bench", "enqueue", "enqueue-bulk", "--dsn", dsn, *TINY, "--repeat", "2", "--markdown"
    )
    assert done.returncode in (0, 1), done.stderr
    *results, header, rule, one, two, three = done.stdout.splitlines()
    assert [json.loads(line)["configuration"]["repeat"] for line in results] == [2] * 3
    assert header.startswith("| scenario | figure | baseline |")
    assert set(rule) == set("| -")
    names = [line.split(" | ")[0] for line in (one, two, three)]
    assert names == ["| enqueue", "| enqueue-cpu", "| enqueue-bulk"]


@pytest.mark.process
def test_an_unknown_revision_is_refused(dsn: str) -> None:
    unknown = run("bench", "enqueue", "--dsn", dsn, *TINY, "--against", "no-such-revision")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("bench: no revision no-such-revision: ")


@pytest.mark.long
@pytest.mark.process
@pytest.mark.skipif(not (SCRIPTS.parent / ".git").exists(), reason="needs the repository")
def test_a_build_is_compared_with_another_revision(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")  # else each round compiles both builds again
    arguments = ["enqueue", "--dsn", dsn, "--rounds", "2", "--seconds", "0.1"]
    done = run("bench", *arguments, "--against", "HEAD")
    rate, cpu = map(json.loads, done.stdout.splitlines())
    assert (rate["scenario"], cpu["scenario"]) == ("enqueue", "enqueue-cpu")
    assert (rate["limit"], cpu["limit"]) == (None, 0.95)
    assert all(line["figure"] > 0 and line["baseline"] > 0 for line in (rate, cpu))
    low, high = cpu["spread"]
    assert low * 0.9 <= cpu["baseline"] / cpu["figure"] <= high * 1.1


@pytest.mark.process
@pytest.mark.skipif(any(map(find_spec, PEERS)), reason="with what it measures it takes minutes")
def test_other_systems_that_are_missing_are_named(dsn: str) -> None:
    result = run("bench", "peers", "--dsn", dsn, *TINY)
    assert [line.split(": ")[:2] for line in result.stderr.splitlines() if ": No mod" in line] == [
        [peer, f"No module named '{MISSING.get(peer, peer)}'"] for peer in PEERS
    ]
    assert (result.stdout, result.returncode) == ("", 0), result.stderr


def test_what_opentelemetry_costs_is_not_measured_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("opentelemetry", "opentelemetry.sdk"):
        monkeypatch.setitem(sys.modules, module, None)
    sizes = comparison.Sizes(seconds=0.1, rounds=1, rows=1, processes=1, threads=1)
    place = comparison.Place(dsn="", sizes=sizes)
    assert tracing.otel(place) == {}
    assert "this needs the SDK of OpenTelemetry: pip install" in capsys.readouterr().err


@pytest.mark.process
def test_cmdbus_does_the_work_that_it_is_compared_by(dsn: str, tmp_path: Path) -> None:
    schema.install(dsn)
    with closing(Cmdbus(dsn)) as peer:
        peer.send([{SLEEP: 0.0, SENT: time.time()}] * 20)
        with peer.workers(str(tmp_path), 1, 2, quick=True):
            eventually(lambda: count_times(str(tmp_path)) == 20, 30.0)
    assert all(each.sent < each.began < each.ended for each in read_times(str(tmp_path)))


def test_an_interrupted_bench_drops_its_database(dsn: str) -> None:
    arguments = ["enqueue-concurrent", "--dsn", dsn, *TINY, "--rounds", "100000"]

    def await_database(process: "subprocess.Popen[bytes]") -> None:
        eventually(lambda: databases(dsn, f"cmdbus_bench_{process.pid}_%"), WITHIN_S)

    pid, _ = interrupt("bench", *arguments, when=await_database)
    assert not databases(dsn, f"cmdbus_bench_{pid}_%")


def test_a_server_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = run("bench", "enqueue", "--dsn", f"host={tmp_path} dbname=nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: cannot connect to database 'nothing'")


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    done = run("bench", "enqueu")
    assert (done.returncode, done.stdout) == (2, "")
    names = [*RATES, *MORE_RATES, *TIMES, *MORE_TIMES, "row-waits", "all"]
    assert all(name in done.stderr for name in names)


@pytest.mark.parametrize(
    ("ratio", "limit", "ok"),
    [(0.6, 0.6, True), (0.5999, 0.6, False), (1.3, 0.6, True), (0.01, None, True)],
)
def test_a_ratio_is_compared_with_its_limit(ratio: float, limit: float | None, ok: bool) -> None:
    assert comparison.reached(ratio, limit) is ok


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    pairs = ((100.0, 70.0), (10.0, 8.0), (200.0, 100.0))
    assert summary([pairs]) == {
        "scenario": "name",
        "figure": 70.0,
        "baseline": 100.0,
        "unit": "things/s",
        "ratio": 0.7,
        "spread": [0.5, 0.8],
        "limit": 0.75,
        "goal": None,
        "why": "because",
        "ok": False,
    }


def test_the_spread_of_repeated_runs_is_that_of_their_medians() -> None:
    runs = [((10.0, 7.0), (10.0, 9.0), (10.0, 8.0)), ((10.0, 6.0),), ((10.0, 9.0),)]
    found = summary(runs)
    assert (found["ratio"], found["spread"], found["ok"]) == (0.8, [0.6, 0.9], True)


def test_a_ratio_of_less_is_better_is_turned() -> None:
    found = summary([((2.0, 4.0), (3.0, 6.0))], less=True)
    assert (found["figure"], found["baseline"], found["ratio"]) == (5.0, 2.5, 0.5)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(12345.678, 12345.7), (999.97, 1000.0), (12.3456, 12.35), (0.0123456, 0.01235)],
)
def test_a_small_figure_keeps_its_digits(figure: float, shown: float) -> None:
    assert comparison.shown(figure) == shown


def test_rounds_alternate_and_swap_their_order() -> None:
    called = []

    def side(name: str, rate: float) -> Any:
        def round_(seconds: float) -> float:
            called.append(name)
            return rate

        return round_

    sizes = comparison.Sizes(seconds=1.0, rounds=3, rows=1, processes=1, threads=1)
    place = comparison.Place(dsn="", sizes=sizes)
    found = place.alternate(side("baseline", 4.0), side("measured", 3.0))
    assert "".join(name[0] for name in called) == "bm" + "bm" + "mb" + "bm"
    assert found == [(4.0, 3.0)] * 3


def test_only_waits_for_rows_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = "LOG:  process 7 still waiting for"
    before = f"{text} ShareLock on transaction 5 after 10.1 ms\n"
    during = [
        f"{text} ShareLock on transaction 8 after 10.1 ms",
        "LOG:  process 7 acquired ShareLock on transaction 8 after 15 ms",
        f"{text} ExclusiveLock on tuple (0,1) of relation 9 of database 3 after 10.0 ms",
        f"{text} ExclusiveLock on advisory lock [1,2,3,4] after 10.0 ms",
    ]
    log.write_text(before + "\n".join(during))
    assert growing._waits_in(log, len(before)) == 2


def summary(runs: list[tuple[tuple[float, float], ...]], *, less: bool = False) -> Any:
    row = comparison.Row("name", lambda place: {}, "things/s", 0.75, None, "because")
    return comparison.summarize(
        row, [comparison.Comparison(pairs=pairs, less=less) for pairs in runs]
    )


def the_line_of(name: str, dsn: str, *more: str, within: float = WITHIN_S) -> Any:
    """The first row's line; what the lines of all rows have in common is asserted here."""
    done = run("bench", name, "--dsn", dsn, *TINY, *more, "--json", within=within)
    assert done.stdout, done.stderr
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert last == {"ok": all(line["ok"] for line in lines), "results": lines}
    assert done.returncode == (0 if last["ok"] else 1), done.stderr
    names = {line["scenario"] for line in lines}
    assert lines[0]["scenario"] == name
    assert {name} <= names <= {name, *MORE.get(name, ())}
    for line in lines:
        assert line["ok"] == (line["limit"] is None or line["ratio"] >= line["limit"])
        low, high = line["spread"]
        assert low <= line["ratio"] <= high
        assert {"server": "given", "repeat": 1, "seconds": 0.02}.items() <= (
            line["configuration"].items()
        )
        assert set(line["versions"]) == {"cmdbus", "python", "postgresql", "psycopg"}
        assert all(line["versions"].values())
    return lines[0]
