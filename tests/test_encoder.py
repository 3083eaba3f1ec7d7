"""An application's own encoder: all kinds of sends take the same values."""

from datetime import date

import pytest
from handlers import found

from cmdbus import CommandBus, ProcessRequest, SendRequest


def in_pairs(value: object) -> object:
    if isinstance(value, complex):
        return {"re": value.real, "at": date(2026, 1, 2)}
    raise TypeError


def test_the_encoder_of_a_bus_serves_all_that_it_sends(dsn: str) -> None:
    form, seen = {"re": 1.0, "at": "2026-01-02"}, []

    def hook(request: SendRequest) -> SendRequest:
        seen.append(request.data)
        return request

    with CommandBus(dsn, encoder=in_pairs, on_send=hook) as bus:
        sent = bus.send("payments", "Debit", complex(1))
        [other] = bus.send_many([SendRequest("payments", "Debit", [complex(1)])])
        batch = bus.create_batch("payments", [SendRequest("a", "B", 1j)], data=complex(1))
        process = bus.start_process("payments", "Flow", {"x": complex(1)})
        bus.create_batch("payments", [], processes=[ProcessRequest("payments", "Flow", {"x": 1j})])
        assert (found(bus, sent).data, found(bus, other).data) == (form, [form])
        record, flow = bus.get_batch(batch), bus.get_process(process)
        assert record is not None and record.data == form
        assert flow is not None and flow.state == {"x": form}
        assert [event.kind for event in bus.audit("payments", sent)] == ["SENT"]
        with pytest.raises(ValueError, match=r"data\.x is of type set"):
            bus.send("payments", "Debit", {"x": {1}})
    assert seen[0] == complex(1)
    with pytest.raises(ValueError, match="encoder must be callable, not 3"):
        CommandBus(dsn, encoder=3)  # type: ignore[arg-type]
