"""A worker's domains take turns, and those without commands cost few claims anything."""

from eventually import eventually
from handlers import running

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim import ClaimPart, ClaimRequest, ClaimResult
from cmdbus.worker.claims.turns import Turns, beginning_anywhere

DOMAINS = [f"domain{number}" for number in range(1_000)]
EMPTY, BUSY = DOMAINS[:500], DOMAINS[500]
#: Seconds that a claim takes, with the run that it has found.
CLAIM_SECONDS = 0.005


class Claimer:
    """Claims from the domains in `busy`, which always have more."""

    def __init__(self, *busy: str) -> None:
        self.turns = Turns(DOMAINS)
        self.busy = set(busy)
        self.now = 100.0
        self.has_more = False

    def next(self, *, all_domains: bool = False) -> list[str]:
        return self.turns.for_claim(self.now, all_domains=all_domains)

    def claim(self) -> str | None:
        domains = self.next()
        found = next((domain for domain in domains if domain in self.busy), None)
        stopped_at = found and (found, 5)
        self.now += CLAIM_SECONDS
        self.has_more = self.turns.claimed(
            ClaimRequest(1, 0, domains, [], [], {}),
            ClaimResult([], ClaimPart.FREE, 0, stopped_at or None, 0, None),
            self.now,
        )
        return found


def test_after_a_claim_that_read_many_domains_the_next_ones_read_only_that_which_had_more() -> None:
    claimer = Claimer(BUSY)
    assert claimer.next() == DOMAINS
    assert claimer.claim() == BUSY
    assert claimer.next() == [BUSY]
    assert claimer.next(all_domains=True) == [*DOMAINS[501:], *EMPTY, BUSY], "it had its turn"
    claimer.now += 1.0
    assert claimer.next() == [*DOMAINS[501:], *EMPTY, BUSY]


def test_a_worker_does_not_rest_before_it_has_read_all_its_domains() -> None:
    claimer = Claimer(BUSY)
    claimer.claim()
    claimer.busy.clear()
    assert claimer.claim() is None and claimer.has_more, "it has read one"
    assert len(claimer.next()) == len(DOMAINS)
    assert claimer.claim() is None and not claimer.has_more


def test_domains_that_are_found_immediately_take_turns_claim_by_claim() -> None:
    claimer = Claimer(*DOMAINS)
    assert [claimer.claim() for _ in DOMAINS] == DOMAINS


def test_each_of_some_busy_domains_has_its_turn_within_half_a_second() -> None:
    claimer = Claimer("domain0", "domain1", BUSY, "domain999")
    for _ in range(20):
        began, seen = claimer.now, set[str | None]()
        while len(seen) < 4:
            seen.add(claimer.claim())
            assert claimer.now - began < 0.5


def test_a_domain_with_one_command_does_not_wait_for_the_backlog_of_another(
    dsn: str, bus: CommandBus
) -> None:
    registry, ran = HandlerRegistry(), list[str]()
    for domain in DOMAINS[:200]:
        registry.register(domain, "Noop", lambda command, context: ran.append(command.domain))
    bus.send_many([SendRequest("domain50", "Noop")] * 20_000)
    others = {"domain0", "domain49", "domain51", "domain199"}
    bus.send_many([SendRequest(domain, "Noop") for domain in others])
    with running(dsn, registry, concurrency=1):
        # Wherever the worker begins, one of them comes after the backlog.
        eventually(lambda: others < set(ran))
        assert ran.count("domain50") < 20_000


def test_the_order_is_kept_wherever_it_begins() -> None:
    orders = [beginning_anywhere(["a", "b", "c"], rand) for rand in (0.0, 0.3, 0.4, 0.7, 0.999)]
    assert ["".join(order) for order in orders] == ["abc", "abc", "bca", "cab", "cab"]


def test_workers_that_run_one_command_each_come_to_every_domain(dsn: str, bus: CommandBus) -> None:
    """In a fixed order, the first domain's backlog would keep them from the others."""
    registry, first = HandlerRegistry(), set[str]()

    def note_and_stop(command: Command, context: Context) -> None:
        first.add(command.domain)
        workers[-1].stop()

    for domain in ("a", "b"):
        registry.register(domain, "Note", note_and_stop)
    bus.send_many([SendRequest(domain, "Note") for domain in ("a", "b")] * 40)
    workers = list[Worker]()
    while len(workers) < 40 and len(first) < 2:
        workers.append(Worker(dsn, registry, concurrency=1))
        workers[-1].run()
    assert first == {"a", "b"}
