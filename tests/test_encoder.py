"""An application's own encoder: all kinds of sends take the same values."""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

import pytest
from eventually import eventually
from handlers import ONCE, found, running

from cmdbus import (
    BusinessRuleError,
    Command,
    CommandBus,
    Context,
    HandlerRegistry,
    ProcessManager,
    ProcessRequest,
    SendRequest,
)

FORM = {"re": 1.0, "at": "2026-01-02"}


def in_pairs(value: object) -> object:
    if isinstance(value, complex):
        return {"re": value.real, "at": date(2026, 1, 2)}
    raise TypeError


def test_the_encoder_of_a_bus_serves_all_that_it_sends(dsn: str) -> None:
    seen = []

    def hook(request: SendRequest) -> SendRequest:
        seen.append(request.data)
        return request

    with CommandBus(dsn, encoder=in_pairs, on_send=hook) as bus:
        sent = bus.send("payments", "Debit", complex(1))
        [other] = bus.send_many([SendRequest("payments", "Debit", [complex(1)])])
        batch = bus.create_batch("payments", [SendRequest("a", "B", 1j)], data=complex(1))
        process = bus.start_process("payments", "Flow", {"x": complex(1)})
        bus.create_batch("payments", [], processes=[ProcessRequest("payments", "Flow", {"x": 1j})])
        assert (found(bus, sent).data, found(bus, other).data) == (FORM, [FORM])
        record, flow = bus.get_batch(batch), bus.get_process(process)
        assert record is not None and record.data == FORM
        assert flow is not None and flow.state == {"x": FORM}
        assert [event.kind for event in bus.audit("payments", sent)] == ["SENT"]
        bus.schedules.add("daily", "payments", "Debit", every="1d", data=complex(1))
        with pytest.raises(ValueError, match=r"data\.x is of type set"):
            bus.send("payments", "Debit", {"x": {1}})
    assert seen[0] == complex(1)
    with pytest.raises(ValueError, match="encoder must be callable, not 3"):
        CommandBus(dsn, encoder=3)  # type: ignore[arg-type]


@dataclass
class Angle:
    turn: Any


class Turning(ProcessManager[Angle]):
    domain, type = "turns", "Turning"
    Step = StrEnum("Step", ["ONLY"])

    def first_step(self, state: Angle) -> Any:
        state.turn = complex(1)
        return self.Step.ONLY

    def build_command(self, step: Any, state: Angle) -> SendRequest | list[SendRequest]:
        return [SendRequest("payments", "Noop", complex(1))]

    def next_step(self, state: Angle, step: Any, reply: object) -> None:
        return None


def test_the_encoder_of_a_registry_serves_all_that_its_handlers_give(
    dsn: str, bus: CommandBus
) -> None:
    registry = HandlerRegistry(encoder=in_pairs)
    registry.register_process(Turning())
    registry.register("payments", "Noop", lambda command, context: command.data)

    @registry.schedule(every="1d", data=complex(1))
    @registry.handler("payments", "Debit", retry=ONCE)
    def debit(command: Command, context: Context) -> object:
        if command.data == "refuse":
            raise BusinessRuleError("REFUSED", "no", details=complex(1))
        if context.batch is not None:
            context.batch.add([SendRequest("payments", "Noop", complex(1))])
        context.checkpoint([complex(1)])
        return [complex(1), context.resumed]

    with running(dsn, registry):
        process = bus.start_process("turns", "Turning", Angle(0))
        batch = bus.create_batch("payments", [SendRequest("payments", "Debit", "go")])
        sent = [bus.send("payments", "Debit", each) for each in ("go", "refuse")]
        done = [bus.wait("payments", each, 10) for each in sent]
        bus.wait_batch(batch, 10)
        [step] = eventually(lambda: bus.process_steps(process))
        bus.wait_batch(step.command_id, 10)
    assert done[0].result == [FORM, [FORM]]
    assert bus.audit("payments", sent[1])[-1].details["details"] == FORM
    added = [bus.batch_commands(each) for each in (batch, step.command_id)]
    assert [c.data for records in added for c in records if c.type == "Noop"] == [FORM, FORM]
    flow = bus.get_process(process)
    assert flow is not None and flow.state == {"turn": FORM}
    [schedule] = registry.schedules()
    assert schedule.data == '{"re":1.0,"at":"2026-01-02"}'


@pytest.mark.parametrize("encoder", [3, "json"])
def test_what_is_no_encoder_is_refused(encoder: Any) -> None:
    with pytest.raises(ValueError, match=f"encoder must be callable, not {encoder!r}"):
        HandlerRegistry(encoder=encoder)
