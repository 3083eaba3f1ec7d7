"""The settings that `cmdbus-supervise` gets from options, environment and file."""

import os
from pathlib import Path

import click
import pytest

from cmdbus.settings import Settings
from cmdbus.supervisor.cli.configuration import configured, entries
from cmdbus.supervisor.cli.supervise import main


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("CMDBUS_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def settings_of(*arguments: str) -> Settings:
    with main.make_context("cmdbus-supervise", list(arguments)) as context:
        return configured(context)


def sources(*arguments: str) -> dict[str, str]:
    with main.make_context("cmdbus-supervise", list(arguments)) as context:
        return {entry.name: entry.source for entry in entries(context)}


def refused(*arguments: str) -> str:
    with pytest.raises(click.UsageError) as refusal:
        settings_of(*arguments)
    return refusal.value.format_message()
