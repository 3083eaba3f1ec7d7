"""What the supervisor decides while its fleet stops, as values."""

from dataclasses import replace

from policies import MOMENT, NOW, STEWARD, decided, fleet, left, starts, worker

from cmdbus.board.records import Role, Verdict
from cmdbus.supervisor.fleet_view import UNDEAD_SECONDS, FleetView, ProcessView
from cmdbus.supervisor.policy import Dump, Kill, Start
from cmdbus.supervisor.stacks import DUMP_SECONDS
from cmdbus.timeouts import RESCUE_SECONDS


def test_a_fleet_that_stops_tells_all_but_the_steward_by_when_they_must_have() -> None:
    alone = ProcessView(index=7, role=Role.QUARANTINE, number=0, generation=1)
    processes = [worker(0), worker(1, ready=False), alone]
    by = NOW + 20
    expected = [left(process, by=by) for process in processes]
    assert decided(fleet(*processes, stop_by=by, suspects=True)) == expected


def test_a_second_signal_brings_the_deadline_forward_and_a_later_one_moves_nothing() -> None:
    early, late = worker(0, stop_by=NOW + 5), worker(1, stop_by=NOW + 30)
    assert decided(fleet(early, late, stop_by=NOW + 9)) == [left(late, by=NOW + 9)]
    assert decided(fleet(early, late, stop_by=NOW + 60)) == []


def test_a_hung_one_has_its_stacks_dumped_also_while_the_fleet_stops() -> None:
    hung = worker(0, due=NOW)
    assert decided(fleet(hung, stop_by=NOW + 20)) == [Dump(process=hung)]


def test_one_that_hangs_while_it_stops_is_killed_before_its_deadline_if_it_runs_commands() -> None:
    """Without commands its main thread may wait for the database, and sends no heartbeats."""
    hung = worker(0, due=NOW, stop_by=NOW + 600, latest_due=NOW + 5)
    there = fleet(hung, worker(0, index=1, generation=2))
    assert decided(there) == [Dump(process=hung)]
    assert decided(there, now=NOW - MOMENT) == []
    dumped = replace(hung, dumped_at=NOW - DUMP_SECONDS)
    killed = [Kill(process=dumped, verdict=Verdict.HUNG)]
    there = fleet(dumped, worker(0, index=1, generation=2))
    assert decided(there) == killed
    stalled = replace(there, detects_hangs=False)
    assert decided(stalled) == []
    late = replace(dumped, stop_by=NOW)
    stalled = replace(stalled, processes=[STEWARD, late, worker(0, index=1, generation=2)])
    assert decided(stalled) == [Kill(process=late, verdict=Verdict.HUNG)]
    idle = replace(hung, latest_due=None)
    assert decided(fleet(idle, worker(0, index=1, generation=2))) == []


def test_a_steward_that_dies_while_the_fleet_stops_has_a_successor_while_one_is_needed() -> None:
    by, steward = NOW + 20, [Start(role=Role.STEWARD, number=0)]
    stopping = worker(0, stop_by=by)
    for needed in (
        FleetView(processes=[stopping], wanted=1, stop_by=by),
        FleetView(processes=[], wanted=1, stop_by=by, unrescued=1),
    ):
        assert decided(needed) == steward
        assert decided(replace(needed, not_before={(Role.STEWARD, 0): NOW + 1})) == []
        late = replace(needed, stop_by=NOW - RESCUE_SECONDS)
        assert not starts(decided(late), Role.STEWARD)
        dying = replace(needed, processes=[*needed.processes, replace(STEWARD, killed_at=NOW)])
        assert decided(dying) == []
    assert decided(FleetView(processes=[], wanted=1, stop_by=by)) == []


def test_the_steward_leaves_when_all_that_was_left_is_handed_back() -> None:
    by = NOW + 20
    steward = left(STEWARD, by=NOW + RESCUE_SECONDS)
    assert decided(fleet(worker(0, stop_by=by), stop_by=by)) == []
    assert decided(fleet(stop_by=by, unrescued=1)) == []
    assert decided(fleet(stop_by=by)) == [steward]


def test_the_steward_waits_for_hand_backs_and_for_the_undead_only_so_long() -> None:
    by = NOW - RESCUE_SECONDS
    assert decided(fleet(stop_by=by, unrescued=1), now=NOW - MOMENT) == []
    assert decided(fleet(stop_by=by, unrescued=1)) == [left(STEWARD, by=NOW + RESCUE_SECONDS)]
    undead = worker(0, stop_by=NOW - 2, killed_at=NOW - UNDEAD_SECONDS)
    assert decided(fleet(undead, stop_by=by), now=NOW - MOMENT) == []
    assert decided(fleet(undead, stop_by=by)) == [left(STEWARD, by=NOW + RESCUE_SECONDS)]


def test_a_steward_that_was_leaving_at_its_leisure_is_hurried() -> None:
    slow = replace(STEWARD, stop_by=NOW + 30)
    hurried = left(slow, by=NOW + RESCUE_SECONDS)
    assert decided(FleetView(processes=[slow], wanted=1, stop_by=NOW)) == [hurried]
    prompt = replace(STEWARD, stop_by=NOW + RESCUE_SECONDS - MOMENT)
    assert decided(FleetView(processes=[prompt], wanted=1, stop_by=NOW)) == []
