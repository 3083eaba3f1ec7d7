"""`cmdbus ps`: what the board shows, also of a dead fleet."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from boards import SECOND, slot_view
from cli import environment_without_ours, here
from ps_boards import another, begin, supervised, taken

from cmdbus.board.board import Board
from cmdbus.board.health import HealthReport
from cmdbus.board.layout import HEAD
from cmdbus.board.records import ExitRecord, Phase, Restart, Role, SupervisorState, Verdict
from cmdbus.board.selected import Selected
from cmdbus.board.threads import SENTENCES, StepReason, ThreadsView
from cmdbus.proc import PidState, pid_state
from cmdbus.supervisor.runtime import board_path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return board_path(tmp_path, "cmdbus")


@pytest.fixture
def board(place: Path) -> Iterator[Board]:
    with closing(Board.create(place, 6, 6, name="cmdbus")) as board:
        supervised(board)
        yield board


def ps(path: Path, *arguments: str, code: int = 0) -> str:
    result = here("ps", "--runtime-dir", str(path.parent), *arguments)
    assert result.exit_code == code
    expected = "Error: the supervisor 'cmdbus' is " if code else ""
    assert result.stderr.startswith(expected) and bool(result.stderr) == bool(code)
    return result.stdout


def state(path: Path, code: int = 0) -> str:
    text: str = json.loads(ps(path, "--json", code=code))["state"]
    assert ps(path, code=code).splitlines()[0].startswith(f"cmdbus: {text}, ")
    return text


def test_what_runs_is_shown_with_its_command_and_times(place: Path, board: Board) -> None:
    command_id = uuid4()
    slot = taken(board, 1, Role.WORKER)
    begin(board, 1, slot, command_id, "D" * 100)
    taken(board, 0, Role.STEWARD)
    board.listening = True
    board.count_restart(Restart.CRASHED)
    text = ps(place)
    lines = text.splitlines()
    assert lines[0].startswith(f"cmdbus: running, pid {os.getpid()}, began ")
    assert lines[1] == "1 restart: crashed 1"
    assert lines[2] == f"steward: pid {os.getpid()}, listens for commands"
    [running] = [line.split() for line in lines if "running" in line and "payments/D" in line]
    assert running[:2] == ["0", "running"] and running[4] == "2"
    assert 3 <= float(running[2][:-1]) < 20 and 13 < float(running[3][:-1]) <= 33
    assert str(command_id) in text
    assert "1 busy, 1 idle" in text
    assert "     1        -       -  empty" in lines
    assert max(map(len, lines)) <= 80


def test_an_unhealthy_process_and_a_stuck_slot_are_shown_with_the_reasons(
    place: Path, board: Board
) -> None:
    levels = HealthReport(consecutive_failures=12, stuck_threads=4)
    slot = taken(board, 1, Role.WORKER, levels=levels)
    begin(board, 1, slot, uuid4())
    board.seat(1).mark_stuck(0, slot_view(board, 1, 0).sequence)
    text = ps(place)
    assert "CRITICAL" in text
    assert "4 stuck threads within 5 minutes, and more than 3 are too many" in text
    assert "12 failures in a row, and more than 10 are too many" in text
    assert "0  stuck " in text
    assert "0 busy, 1 idle, 1 stuck" in text


def test_a_range_of_threads_is_shown_with_its_number_and_the_reason_of_the_last_step(
    place: Path, board: Board
) -> None:
    taken(board, 1, Role.WORKER)
    board.seat(1).threads = ThreadsView(8, 8, 8).to_cell()
    assert "threads 8" not in ps(place)
    assert json.loads(ps(place, "--json"))["seats"][0]["threads"] == {
        **{"now": 8, "least": 8, "most": 8},
        "reason": "fixed",
    }
    for reason in StepReason:
        board.seat(1).threads = ThreadsView(128, 1, 128, reason).to_cell()
        lines = ps(place).splitlines()
        assert f"      threads 128 of 1:128: {SENTENCES[reason]}" in lines
        assert max(map(len, lines)) <= 80


def test_a_process_is_shown_while_its_successor_starts(place: Path, board: Board) -> None:
    """In JSON, which has one process of each number, until the successor is ready."""

    def ready(index: int) -> None:
        now, seat = time.monotonic_ns(), board.seat(index)
        seat.enter(pid=os.getpid(), generation=index + 1, now=now)
        seat.ready(now)

    command_id = uuid4()
    begin(board, 1, taken(board, 1, Role.WORKER), command_id)
    ready(1)
    taken(board, 2, Role.WORKER)
    text = ps(place)
    assert str(command_id) in text and len(re.findall(r"^ +0 .* HEALTHY ", text, re.MULTILINE)) == 2
    assert json.loads(ps(place, "--json"))["seats"][0]["generation"] == 2
    ready(2)
    assert json.loads(ps(place, "--json"))["seats"][0]["generation"] == 3


def test_the_quarantine_is_shown(place: Path, board: Board) -> None:
    command_id = uuid4()
    begin(board, 0, taken(board, 0, Role.QUARANTINE), command_id)
    text = ps(place)
    assert "quarantine: pid" in text and str(command_id) in text
    assert json.loads(ps(place, "--json"))["quarantine"]["slots"][0]["type"] == "Debit"


def test_a_process_that_stops_without_an_order_is_shown(place: Path, board: Board) -> None:
    taken(board, 1, Role.WORKER)
    seat = board.seat(1)
    seat.terminated = 1
    seat.set_identity(Role.STOPPING, 0, 2)
    text = ps(place)
    assert f"stopping: pid {os.getpid()}, which got a SIGTERM that the supervisor did not" in text


def test_stopping_and_dead_processes_are_shown(place: Path, board: Board) -> None:
    command_id, now = uuid4(), time.monotonic_ns()
    begin(board, 1, taken(board, 1, Role.WORKER), command_id)
    board.seat(1).order_to_stop(0, 2, now + 3600 * SECOND)
    taken(board, 2, Role.WORKER, 1)
    exit_record = ExitRecord(generation=3, pid=4711, signal=9, verdict=Verdict.STUCK)
    board.seat(2).record_exit(1, exit_record)
    supervised(board, state=SupervisorState.GIVING_UP)
    text = ps(place)
    assert text.startswith("cmdbus: giving up, pid ")
    assert f"stopping: pid {os.getpid()}, which must have exited in 60m" in text
    assert str(command_id) in text
    assert "ended: pid 4711 (signal 9, a thread was stuck); its claims are being released" in text
    assert [line.split()[0] for line in text.splitlines() if line.endswith("empty")] == ["0", "1"]


def test_tags_priorities_and_age_share_of_a_fleet_are_shown(place: Path) -> None:
    selected = Selected(("gpu", "eu"), (0, 4), 10)
    with closing(Board.create(place, 2, 2, selected=selected)) as board:
        supervised(board)
        assert "\ntags gpu, eu; priorities 0-4; age share 10 %\n" in ps(place)
        value = json.loads(ps(place, "--json"))
    assert (value["tags"], value["priorities"], value["age_share"]) == (["gpu", "eu"], [0, 4], 10)


def test_tags_that_do_not_fit_on_the_board_are_left_out(place: Path) -> None:
    tags = [f"{number:03}".rjust(100, "t") for number in range(20)]
    with closing(Board.create(place, 2, 2, selected=Selected(tags))) as board:
        assert 5 < len(board.snapshot().selected.tags) < 20


def test_as_json_it_has_the_documented_form(place: Path, board: Board) -> None:
    command_id = uuid4()
    slot = taken(board, 1, Role.WORKER)
    begin(board, 1, slot, command_id)
    board.seat(1).rss_bytes = 123_000_000
    assert "   117M  1 busy, 1 idle" in ps(place)
    value = json.loads(ps(place, "--json"))
    assert set(value) == {"name", "pid", "state", "seats", "steward", "quarantine"} | {
        *("tags", "priorities", "age_share")
    }
    assert (value["tags"], value["priorities"], value["age_share"]) == ([], [0, 10], 0)
    assert (value["name"], value["pid"], value["state"]) == ("cmdbus", os.getpid(), "running")
    assert value["quarantine"] is None and value["steward"]["pid"] is None
    seat, empty = value["seats"]
    assert (empty["seat"], empty["pid"]) == (1, None)
    assert (seat.pop("restarts"), seat.pop("rss_bytes")) == (1, 123_000_000)
    assert (empty["restarts"], empty["rss_bytes"]) == (None, None)
    assert set(seat) == {
        "seat",
        "pid",
        "generation",
        "health",
        "reasons",
        "since",
        "slots",
        "threads",
    }
    assert seat["threads"] is None, "it has not started any"
    busy, idle = seat["slots"]
    assert 3 <= busy.pop("since") < 20 and 10 < busy.pop("due") <= 33
    assert busy == {
        "slot": 0,
        "phase": "running",
        "command_id": str(command_id),
        "domain": "payments",
        "type": "Debit",
        "attempt": 2,
    }
    assert (idle["phase"], idle["command_id"]) == ("idle", None)


def test_a_supervisor_that_is_gone_is_dead_whatever_it_wrote_last(place: Path) -> None:
    with another(place) as supervisor:
        assert state(place) == "running"
        os.kill(supervisor, signal.SIGKILL)
        os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOWAIT)
        assert state(place, 1) == "dead"  # not reaped yet
    assert state(place, 1) == "dead"
    assert "Its process is gone; this is its last state" in ps(place, code=1)


def test_a_frozen_supervisor_is_shown_as_frozen_at_once(place: Path) -> None:
    with another(place) as supervisor:
        os.kill(supervisor, signal.SIGSTOP)
        os.waitid(os.P_PID, supervisor, os.WSTOPPED | os.WNOWAIT)
        assert state(place) == "running"
        head, text, *_ = ps(place).splitlines()
        assert head.startswith("cmdbus: running, but frozen, pid ")
        assert text.startswith("A signal has suspended it")


def test_a_supervisor_whose_heartbeat_is_overdue_is_shown_as_late(place: Path) -> None:
    began = time.monotonic()
    with another(place, due=-5):
        assert state(place) == "running"
        head, text, *_ = ps(place).splitlines()
        assert head.startswith("cmdbus: running, but late, pid ")
        [late] = re.findall(r"^Hung .* heartbeat is overdue by ([\d.]+)s\.$", text)
        assert 5 <= float(late) <= 5.1 + time.monotonic() - began


def test_one_that_has_stopped_is_neither_dead_nor_late(place: Path, board: Board) -> None:
    supervised(board, due=-60, state=SupervisorState.STOPPED)
    assert state(place, 1) == "stopped"
    assert "Hung" not in ps(place, code=1)


def test_a_pid_that_another_process_has_now_is_not_the_supervisor(
    place: Path, board: Board
) -> None:
    board.supervise(
        pid=os.getpid(), state=SupervisorState.RUNNING, since=SECOND, due=2 * SECOND, wanted=1
    )
    assert state(place, 1) == "dead"
    found = [pid_state(os.getpid(), since) for since in (None, SECOND, time.monotonic_ns())]
    assert found == [PidState.RUNNING, PidState.GONE, PidState.RUNNING]


def test_a_board_of_another_boot_shows_no_times(place: Path, board: Board) -> None:
    begin(board, 1, taken(board, 1, Role.WORKER), uuid4())
    with place.open("r+b") as file:
        file.seek(HEAD.size - 16)
        file.write(bytes(16))
    assert state(place, 1) == "dead"
    text = ps(place, code=1)
    assert "The machine was restarted since" in text
    assert "payments/Debit" in text and "late" not in text
    [seat, _] = json.loads(ps(place, "--json", code=1))["seats"]
    assert (seat["since"], seat["slots"][0]["due"], seat["health"]) == (None, None, None)


def test_a_process_that_is_gone_is_not_healthy(place: Path, board: Board) -> None:
    begin(board, 1, taken(board, 1, Role.WORKER), uuid4())
    taken(board, 0, Role.STEWARD)
    with subprocess.Popen(["true"]) as ended:
        pass
    for at in (0, 1):
        board.seat(at).enter(pid=ended.pid, generation=at + 1, now=time.monotonic_ns())
    text = ps(place)
    assert re.search(rf" 0 +{ended.pid} +2 +gone ", text) and "HEALTHY" not in text
    assert f"steward: gone, pid was {ended.pid}" in text
    [seat, _] = json.loads(ps(place, "--json"))["seats"]
    assert (seat["pid"], seat["health"]) == (ended.pid, None)


def test_a_missing_board_is_reported_with_its_directory(tmp_path: Path) -> None:
    def refusal(*arguments: str) -> str:
        result = here("ps", "--runtime-dir", str(tmp_path), *arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        return result.stderr

    assert f"there is no board of 'cmdbus' in {tmp_path}: start cmdbus-supervise" in refusal()
    Board.create(board_path(tmp_path, "shop"), 1, 1, name="shop").close()
    assert "it has boards of shop: choose one with --name" in refusal()
    (tmp_path / "bad.board").write_text("something")
    assert "cannot be read as a board" in refusal("--name", "bad")
    assert "cannot be read: File name too long" in refusal("--runtime-dir", "x" * 300)


def test_ps_asks_no_database(place: Path, board: Board) -> None:
    code = (
        "import sys; from cmdbus.supervisor.cli.operate import main\n"
        "try: main()\n"
        "finally: print([m for m in sys.modules if m.startswith('psycopg')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "ps", "--runtime-dir", str(place.parent), "--dsn", "x"],
        capture_output=True,
        text=True,
        timeout=25,
        env={**environment_without_ours(), "CMDBUS_DSN": ""},
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]")


def test_a_leader_and_a_thread_without_the_database_are_busy(place: Path, board: Board) -> None:
    slot = taken(board, 1, Role.WORKER)
    for phase, busy in ((Phase.LEADING, 1), (Phase.AWAY, 1), (Phase.RESTING, 0)):
        slot.enter(phase, time.monotonic_ns(), 0)
        assert f"{busy} busy" in ps(place)
