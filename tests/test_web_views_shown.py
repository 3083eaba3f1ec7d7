"""Each view of the operators' page in a browser, on the day of a shop."""

from collections.abc import Mapping
from pathlib import Path

from page_processes import page_server
from visits import Visit, Visiting

from cmdbus import CommandBus, SendRequest


def show_all(visit: Visit, views: Mapping[str, tuple[str, str]]) -> None:
    """`views` are the heading and a text of each."""
    for view, (heading, text) in views.items():
        visit.open(view).sees(heading, "h1")
        visit.sees(text, "#view")
        assert not visit.tab.locator(".problem-box").count(), f"{view}: {visit.text('#view')}"


def test_each_view_opens_without_a_complaint_of_the_browser(
    visiting: Visiting, bus: CommandBus, dsn: str, tmp_path: Path
) -> None:
    headers = {"tenant": "blue"}
    command_id = bus.send("payments", "Charge", {"amount": 5}, headers=headers)
    batch_id = bus.create_batch("mail", [SendRequest("mail", "Send")], name="November")
    process_id = bus.start_process("orders", "Purchase", {})
    bus.schedules.add("nightly", "reports", "Build", every="1d")
    bus.limits.set("mail", "Send", concurrency=5)
    views = {
        "#/overview": ("Overview", "Needs attention"),
        "#/fleet": ("Fleet", "No node has run here"),
        "#/commands": ("Commands", "mail / Send"),
        f"#/command/payments/{command_id}": ("payments/Charge", "blue"),
        "#/troubleshooting": ("Troubleshooting", "Nothing waits for an operator"),
        "#/batches": ("Batches", "November"),
        f"#/batch/{batch_id}": ("Batch November", "mail/Send"),
        "#/processes": ("Processes", "Purchase"),
        f"#/process/{process_id}": ("Purchase", str(process_id)),
        "#/limits": ("Limits", "5 at once"),
        "#/breakers": ("Breakers", "No breakers"),
        "#/schedules": ("Schedules", "nightly"),
        "#/bridges": ("Bridges", "bus.bridges.add"),
        "#/domain/payments": ("Domain payments", "Settings"),
    }
    with page_server(dsn, tmp_path) as page, visiting(page) as visit:
        show_all(visit, views)
