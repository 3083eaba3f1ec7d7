"""Processes of the runs: what each step sends is in its state, as its producer drew it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cmdbus import ProcessManager, Reply, RetryPolicy, SendRequest
from cmdbus.handlers import Handler
from cmdbus.payloads.forms import Encoder

FLOWS, FLOW = "flows", "Flow"
#: Of the third step: some of its commands take longer.
DEADLINE_S = 1.5


class FlowStep(StrEnum):
    FIRST = "FIRST"
    SECOND = "SECOND"
    THIRD = "THIRD"
    FOURTH = "FOURTH"


STEPS = list(FlowStep)


@dataclass
class FlowState:
    call: str
    #: For each step its commands (domain, type and data of each), whether they are sent as a
    #: list, and what undoes them, which may be None.
    plan: list[dict[str, Any]]
    #: The steps and outcomes of all replies.
    seen: list[list[str]] = field(default_factory=list)
    #: The calls that sent the signals.
    signals: list[str] = field(default_factory=list)


class Flow(ProcessManager[FlowState]):
    domain, type = FLOWS, FLOW
    Step = FlowStep

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry

    def process_handlers(
        self, managers: Mapping[str, Any], encoder: Encoder | None
    ) -> list[Handler]:
        return [
            replace(handler, retry=self._retry)
            for handler in super().process_handlers(managers, encoder)
        ]

    def first_step(self, state: FlowState) -> FlowStep:
        return STEPS[0]

    def build_command(self, step: FlowStep, state: FlowState) -> SendRequest | list[SendRequest]:
        planned = state.plan[STEPS.index(step)]
        requests = [_request(state, each) for each in planned["commands"]]
        return requests if planned["listed"] else requests[0]

    def update_state(self, state: FlowState, step: FlowStep, reply: Reply) -> FlowState:
        state.seen.append([str(step), reply.outcome])
        return state

    def next_step(self, state: FlowState, step: FlowStep, reply: Reply) -> FlowStep | None:
        following = STEPS.index(step) + 1
        return None if following == len(state.plan) else STEPS[following]

    def compensation(self, step: FlowStep, state: FlowState) -> SendRequest | None:
        undo = state.plan[STEPS.index(step)]["undo"]
        return None if undo is None else _request(state, undo)

    def deadline(self, step: FlowStep) -> float | None:
        return DEADLINE_S if step is FlowStep.THIRD else None

    def on_signal(self, state: FlowState, name: str, data: Any) -> FlowState:
        state.signals.append(data)
        return state


def _request(state: FlowState, planned: Mapping[str, Any]) -> SendRequest:
    data = {"process": state.call, **planned["data"]}
    return SendRequest(planned["domain"], planned["type"], data, key=planned.get("key"))
