"""Reads what nodes have published, whatever version did. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from cmdbus.producer.node_records import (
    ExitedCommand,
    NodeCounters,
    NodeExit,
    NodeRecord,
    NodeSeat,
    NodeSlot,
    NodeSteward,
)
from cmdbus.rollups import OUTCOMES
from cmdbus.selection import ALL_PRIORITIES


class NodeRow(NamedTuple):
    """Of read_fleet."""

    node: int
    name: str
    host: str
    published_at: datetime
    gone: bool
    stopped: bool
    state: str


def node_record(row: NodeRow) -> NodeRecord:
    published_at = row.published_at.astimezone(UTC)
    state = _Values(_parsed(row.state), published_at)
    priorities = state.list("priorities")
    return NodeRecord(
        node=row.node,
        name=row.name,
        host=row.host,
        published_at=published_at,
        gone=row.gone,
        stopped=row.stopped,
        pid=state.whole("pid"),
        state=state.text("state"),
        started_at=state.before("started"),
        version=state.text("version"),
        python=state.text("python"),
        schema=state.whole("schema"),
        postgresql=state.whole("postgresql"),
        tags=[str(tag) for tag in state.list("tags")],
        priorities=(int(priorities[0]), int(priorities[1]))
        if len(priorities) == 2
        else ALL_PRIORITIES,
        age_share=state.whole("age_share") or 0,
        wanted=state.whole("wanted") or 0,
        memory=state.whole("memory") or 0,
        restarts={str(k): v for k, v in state.dict("restarts").items() if isinstance(v, int)},
        undead=state.whole("undead") or 0,
        seats=[_seat(each) for each in state.each("seats")],
        steward=next((_steward(each) for each in state.one("steward")), None),
        quarantine=next((_seat(each) for each in state.one("quarantine")), None),
        exits=list(_exits(state)),
        cut=bool(state.values.get("cut")),
    )


def counters_of(node: int, published_at: datetime, text: str) -> Iterator[NodeCounters]:
    for name, value in _parsed(text).items():
        domain, _, type_ = name.partition(" ")
        with suppress(TypeError, KeyError, AttributeError, ValueError):
            waited, ran = value["waited"], value["ran"]
            yield NodeCounters(
                node=node,
                published_at=published_at.astimezone(UTC),
                domain=domain,
                type=type_,
                ended=dict(zip(OUTCOMES, map(int, value["ended"]), strict=False)),
                waited=[int(count) for count in waited["buckets"]],
                waited_sum=float(waited["sum"]),
                ran=[int(count) for count in ran["buckets"]],
                ran_sum=float(ran["sum"]),
            )


def stacks_of(text: str) -> dict[int, str]:
    """By the number of the exit."""
    with suppress(ValueError):
        return {int(number): str(stack) for number, stack in _parsed(text).items()}
    return {}


@dataclass(frozen=True, slots=True)
class _Values:
    """An object of JSON, of which nothing is known."""

    values: Mapping[str, Any]
    published_at: datetime

    def whole(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) else None

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def before(self, key: str) -> datetime | None:
        return self._at(key, -1)

    def after(self, key: str) -> datetime | None:
        return self._at(key, 1)

    def id(self, key: str) -> UUID | None:
        with suppress(ValueError, TypeError, AttributeError):
            return UUID(self.values.get(key))
        return None

    def list(self, key: str) -> Sequence[Any]:
        value = self.values.get(key)
        return value if isinstance(value, list) else []

    def dict(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        return value if isinstance(value, dict) else {}

    def one(self, key: str) -> Iterator["_Values"]:
        """The object, if there is one."""
        if value := self.dict(key):
            yield _Values(value, self.published_at)

    def each(self, key: str) -> Iterator["_Values"]:
        for value in self.list(key):
            if isinstance(value, dict):
                yield _Values(value, self.published_at)

    def _at(self, key: str, sign: int) -> datetime | None:
        value = self.values.get(key)
        if isinstance(value, int | float):
            with suppress(OverflowError, ValueError):
                return self.published_at + timedelta(seconds=sign * value)
        return None


def _seat(values: _Values) -> NodeSeat:
    threads = _Values(values.dict("threads"), values.published_at)
    return NodeSeat(
        seat=values.whole("seat") or 0,
        pid=values.whole("pid"),
        generation=values.whole("generation") or 0,
        health=values.text("health"),
        reasons=[str(reason) for reason in values.list("reasons")],
        since=values.before("since"),
        memory=values.whole("rss_bytes"),
        threads=threads.whole("now"),
        min_threads=threads.whole("least"),
        max_threads=threads.whole("most"),
        slots=[
            NodeSlot(
                slot=each.whole("slot") or 0,
                phase=each.text("phase"),
                since=each.before("since"),
                due=each.after("due"),
                command_id=each.id("command_id"),
                domain=each.text("domain"),
                type=each.text("type"),
                attempt=each.whole("attempt"),
            )
            for each in values.each("slots")
        ],
    )


def _steward(values: _Values) -> NodeSteward:
    return NodeSteward(
        pid=values.whole("pid"),
        generation=values.whole("generation") or 0,
        since=values.before("since"),
        due=values.after("due"),
        listening=bool(values.values.get("listening")),
        armed=bool(values.values.get("armed")),
    )


def _exits(state: _Values) -> Iterator[NodeExit]:
    for each in state.each("exits"):
        at, number = each.before("ago"), each.whole("number")
        if at is None or number is None:
            continue
        yield NodeExit(
            number=number,
            at=at,
            role=each.text("role") or "worker",
            seat=each.whole("seat") or 0,
            pid=each.whole("pid") or 0,
            generation=each.whole("generation") or 0,
            verdict=each.text("verdict") or "none",
            signal=each.text("signal"),
            code=each.whole("code"),
            reason=each.text("reason") or "",
            commands=[
                ExitedCommand(
                    domain=command.text("domain") or "",
                    type=command.text("type") or "",
                    command_id=id_,
                    attempt=command.whole("attempt") or 0,
                    charged=bool(command.values.get("charged")),
                )
                for command in each.each("commands")
                if (id_ := command.id("command_id")) is not None
            ],
        )


def _parsed(text: str) -> Mapping[str, Any]:
    """Empty if it is no object."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            return value
    return {}
