"""The batches and processes of a run, as records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    batch_id: str
    #: The call that created it, or the step of a process.
    name: str
    status: str
    total: int
    completed: int
    failed: int
    canceled: int
    #: Its commands and processes, by status; processes that are undone have failed.
    rows: Mapping[str, int]
    #: The numbers of commands that it has sent as complete, and as canceled.
    on_complete: int
    on_cancel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command or a batch that a process has sent."""

    number: int
    #: The number of the step that this one undoes.
    undoes: int | None = None
    step: str
    command_id: str
    type: str
    outcome: str | None = None
    deadline_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    process_id: str
    #: The call that started it.
    call: str
    batch: str | None = None
    status: str
    #: For each planned step whether it is a list, and whether something undoes it.
    listed: Sequence[bool]
    undone: Sequence[bool]
    #: The steps and outcomes of the replies that its manager saw, and the signals.
    seen: Sequence[tuple[str, str]]
    signals: Sequence[str] = ()
    steps: Sequence[Step] = ()
    #: The kinds of its events.
    events: Sequence[str] = ()
