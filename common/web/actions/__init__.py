"""What an operator can do on the page: one module a subject, each with its `ACTIONS`."""

from cmdbus.web.action import Action
from cmdbus.web.actions import (
    batches,
    breaker_terms,
    breakers,
    bridges,
    commands,
    domains,
    limits,
    processes,
    schedules,
    troubleshooting,
)

ACTIONS: dict[str, Action] = {
    action.name: action
    for subject in (
        batches,
        breaker_terms,
        breakers,
        bridges,
        commands,
        domains,
        limits,
        processes,
        schedules,
        troubleshooting,
    )
    for action in subject.ACTIONS
}
