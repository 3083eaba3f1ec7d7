"""The invariants, each a function of a history that yields what breaks it. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fault_injection.batch_checks import (
    batches_count_their_commands,
    batches_end_as_their_commands,
    batches_end_once,
    commands_are_added_with_the_end_of_the_handler,
)
from fault_injection.bridge_checks import (
    bridges_were_used,
    commands_have_the_numbers_of_their_messages,
    messages_become_one_command,
    messages_move_in_time,
    replies_come_back_as_one_message,
)
from fault_injection.call_checks import (
    all_or_nothing,
    calls_return_what_their_commands_did,
    no_invention,
    no_loss,
    unhandled_waits,
)
from fault_injection.command_checks import (
    attempts_are_bounded,
    claims_do_not_overlap,
    each_execution_has_a_claim,
    effects_are_of_what_was_settled,
    effects_are_there_once,
    ended_leases_are_recorded,
    ends_as_its_handler_says,
    not_before_its_time,
    one_end,
    only_the_claimer_ends_a_claim,
    runs_are_explained,
    tokens_count_up,
)
from fault_injection.expiry_checks import what_expires_never_begins
from fault_injection.fleet_checks import (
    connections_are_bounded,
    counters_never_fall,
    counts_agree,
    every_source_was_heard,
    everything_works_again,
    fleets_are_bounded,
    no_process_is_left,
    no_secret_is_printed,
    none_claims_after_its_stop,
    restarts_have_causes,
    starts_are_bounded,
    the_server_is_content,
)
from fault_injection.header_checks import headers_are_kept, headers_are_passed_on
from fault_injection.history import Call, History, Restore
from fault_injection.iteration_checks import rows_of_iterations_are_there_once
from fault_injection.lane_checks import (
    no_place_is_lost,
    order_is_kept,
    places_are_never_exceeded,
    rates_are_kept,
)
from fault_injection.probe_checks import probes_are_never_exceeded
from fault_injection.process_checks import (
    deadlines_fire_in_time,
    nothing_is_undone_too_early,
    processes_are_those_that_were_started,
    processes_end_as_their_steps,
    processes_have_ended,
    signals_come_once,
    steps_are_taken_once,
    steps_end_as_their_commands,
    what_was_done_is_undone_once,
)
from fault_injection.selection_checks import only_selected_instances_claim
from fault_injection.tick_checks import (
    no_tick_is_missing,
    ticks_are_in_time,
    ticks_are_sent_once,
)
from fault_injection.time_checks import (
    calls_end_with_their_commands,
    delayed_start_in_time,
    leases_of_the_living_are_renewed,
    outages_are_over_in_time,
    stops_lose_no_outcome,
)
from fault_injection.unique_checks import (
    only_held_keys_are_refused,
    only_what_waits_is_replaced,
    unique_keys_have_one_holder,
)

Check = Callable[[History], Iterator[str]]

#: Seconds after which a process has begun whatever it had claimed before a restore.
_FORGOTTEN_S = 6.0
#: Seconds within which the outcome of a handler that has returned is settled.
_SETTLED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    about: str
    violations: Sequence[str]


def check(history: History) -> list[Finding]:
    for restore in history.restores:
        history = excused(history, restore)
    return [
        Finding(name=name_of(function), about=about, violations=list(function(history)))
        for about, function in CHECKS
    ]


def name_of(function: Check) -> str:
    return function.__name__.replace("_", "-")


def excused(history: History, restore: Restore) -> History:
    """Without what a restored server cannot remember, and nothing else: whether calls that were
    answered after the copy came through, and what became of executions that went on then."""
    copied, restored = restore.copied_at, restore.restored_at
    calls = [
        replace(call, outcome="unknown", answer=None, held_by=None)
        if call.ended >= copied and call.began <= restored
        else call
        for call in history.calls
    ]
    exits = {mark.run: mark.at for mark in history.marks if mark.what != "enter"}
    marks = [
        mark
        for mark in history.marks
        if mark.what != "enter"
        or mark.at > restored + _FORGOTTEN_S
        or exits.get(mark.run, float("inf")) < copied - _SETTLED_S
    ]
    return replace(history, calls=calls, marks=marks)


CHECKS: Sequence[tuple[str, Check]] = (
    ("no loss: what was accepted has ended", no_loss),
    ("commands without a handler wait, untouched", unhandled_waits),
    ("no invention: what is there was sent", no_invention),
    ("unknown sends came through entirely or not at all", all_or_nothing),
    ("exactly one end, and nothing after it", one_end),
    ("the end is the handler's, or of recorded losses", ends_as_its_handler_says),
    ("tokens count 1, 2, 3 ..., each of one claimer", tokens_count_up),
    ("only the holder of the latest claim settles", only_the_claimer_ends_a_claim),
    ("claims of a command never overlap", claims_do_not_overlap),
    ("each execution has a claim of its own", each_execution_has_a_claim),
    ("effects: once if completed, else never", effects_are_there_once),
    ("effects are of the settled run, in its transaction", effects_are_of_what_was_settled),
    ("what goes on from checkpoints writes each row once", rows_of_iterations_are_there_once),
    ("executions are explained by what is recorded", runs_are_explained),
    ("each claim after an ended lease has its event", ended_leases_are_recorded),
    ("leases of living processes are renewed", leases_of_the_living_are_renewed),
    ("a stop within its drain loses no outcome", stops_lose_no_outcome),
    ("attempts are bounded, and only outcomes charge", attempts_are_bounded),
    ("nothing runs before it is due", not_before_its_time),
    ("what is delayed starts in time", delayed_start_in_time),
    ("each message becomes one command, or waits", messages_become_one_command),
    ("commands name their messages", commands_have_the_numbers_of_their_messages),
    ("each reply to a message is one message", replies_come_back_as_one_message),
    ("messages move in time while stewards live", messages_move_in_time),
    ("messages came over both bridges", bridges_were_used),
    ("commands keep the headers of their send", headers_are_kept),
    ("replies and what handlers add get headers", headers_are_passed_on),
    ("no tick of a schedule is sent twice", ticks_are_sent_once),
    ("no tick of a schedule is missing", no_tick_is_missing),
    ("ticks are sent in time while a steward lives", ticks_are_in_time),
    ("no more probes of a breaker than its terms say", probes_are_never_exceeded),
    ("no more run at once than a limit allows", places_are_never_exceeded),
    ("ordered commands run one after the other, as sent", order_is_kept),
    ("no more start in a time than a rate allows", rates_are_kept),
    ("no place and no turn is lost", no_place_is_lost),
    ("only what has the tag, or claims the priority, runs it", only_selected_instances_claim),
    ("what expires never begins, and is canceled in time", what_expires_never_begins),
    ("a unique key has one holder at a time", unique_keys_have_one_holder),
    ("only the key of a holder is refused", only_held_keys_are_refused),
    ("only what waits is replaced, by one with its key", only_what_waits_is_replaced),
    ("the counters of batches equal their commands", batches_count_their_commands),
    ("batches end with their last command, once", batches_end_once),
    ("batches end as their commands, or canceled", batches_end_as_their_commands),
    ("handlers add with their end", commands_are_added_with_the_end_of_the_handler),
    ("calls return what became of their commands", calls_return_what_their_commands_did),
    ("calls end with their commands", calls_end_with_their_commands),
    ("processes are those that were started", processes_are_those_that_were_started),
    ("processes have ended", processes_have_ended),
    ("each step is taken once, in order", steps_are_taken_once),
    ("signals come once", signals_come_once),
    ("steps end as their commands", steps_end_as_their_commands),
    ("processes end as their steps", processes_end_as_their_steps),
    ("deadlines fire when they have passed", deadlines_fire_in_time),
    ("what was done is undone once, the latest first", what_was_done_is_undone_once),
    ("nothing is undone before everything has ended", nothing_is_undone_too_early),
    ("in each snapshot: sent = sum over all states", counts_agree),
    ("counters never fall while a supervisor lives", counters_never_fall),
    ("restarts and ends of processes have causes", restarts_have_causes),
    ("no post starts processes in a loop", starts_are_bounded),
    ("no more processes than wanted, and one", fleets_are_bounded),
    ("no more sessions than the budget", connections_are_bounded),
    ("none claims after its stop", none_claims_after_its_stop),
    ("everything works again in time, and is drained", everything_works_again),
    ("after an outage all work again within 2 s", outages_are_over_in_time),
    ("no PANIC, deadlock or timeout of the server's own", the_server_is_content),
    ("the password is nowhere to be read", no_secret_is_printed),
    ("every source of this was heard", every_source_was_heard),
    ("no zombie and no orphan for more than 2 s", no_process_is_left),
)


def outcomes(calls: Iterable[Call]) -> Counter[str]:
    return Counter(call.outcome for call in calls)
