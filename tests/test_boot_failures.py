"""When a fleet whose processes cannot start gives up, and what it logs of them."""

from policies import STEWARD, worker

from cmdbus.supervisor.boot_failures import BootFailures


def test_only_a_failure_of_each_worker_is_final() -> None:
    failures = BootFailures()
    failures.failed(STEWARD, "broken")
    failures.failed(worker(0), "broken")
    failures.failed(worker(0), "broken")
    assert not failures.is_final(2)
    failures.failed(worker(1), "broken")
    assert failures.is_final(2)


def test_none_is_final_once_a_worker_was_ready() -> None:
    failures = BootFailures()
    failures.failed(worker(0), "broken")
    failures.ready(worker(1))
    failures.failed(worker(0), "broken")
    failures.failed(worker(1), "broken")
    assert not failures.is_final(2)


def test_each_reason_is_logged_in_full_once_until_a_worker_is_ready() -> None:
    failures = BootFailures()
    texts = [failures.failed(worker(), each) for each in ("broken", "broken", "away", "")]
    assert texts == [": broken", ": the same reason as before", ": away", ""]
    failures.ready(STEWARD)
    assert failures.failed(worker(), "broken") == ": the same reason as before"
    failures.ready(worker())
    assert failures.failed(worker(), "broken") == ": broken"
