"""One trace across a web request, a command and its reply, as the page of the room shows it."""

import re
from pathlib import Path

import pytest
from flask import Flask
from handlers import running
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from test_readme import code_block
from traces import Traces, context, instrumented, picture

from cmdbus import Command, CommandBus, Context, HandlerRegistry

PAGE = "common/otel/README.md"

pytestmark = pytest.mark.skipif(
    not (Path(__file__).parents[1] / PAGE).exists(),
    reason="reads the checkout, and there is none here",
)


def shop(bus: CommandBus) -> Flask:
    app = Flask("shop")

    @app.post("/orders")
    def order() -> tuple[str, int]:
        bus.send("payments", "Debit", {"amount": 5}, reply_to="orders")
        return "accepted", 202

    return app


def handlers(traces: Traces) -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handler("payments", "Debit")
    def debit(command: Command, context: Context) -> dict[str, str]:
        with traces.tracer.start_as_current_span("UPDATE account"):
            context.connection.execute("SELECT 1")
        return {"status": "ok"}

    @registry.handler("orders", "Reply")
    def replied(command: Command, context: Context) -> None:
        pass

    return registry


def shape(drawn: str) -> str:
    """Without times."""
    return re.sub(r"[ \d.]+$", "", drawn, flags=re.MULTILINE)


def test_the_page_shows_the_spans_of_a_request_a_command_and_its_reply(
    dsn: str, bus: CommandBus
) -> None:
    traces, app = Traces(), shop(bus)
    FlaskInstrumentor().instrument_app(app, tracer_provider=traces.tracers)  # type: ignore[no-untyped-call]
    with instrumented(traces), running(dsn, handlers(traces)):
        for _ in range(2):  # The first one waits for the worker's start.
            traces.clear()
            assert app.test_client().post("/orders").status_code == 202
            traces.one("settle orders")
    drawn = picture(traces.spans)
    assert shape(drawn) == shape(code_block("start, and the duration.", PAGE).strip("\n")), drawn
    assert len({context(span).trace_id for span in traces.spans}) == 1
