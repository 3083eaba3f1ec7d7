"""What a PgmqClient returns, with PGMQ's names; times in UTC. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cmdbus.data import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    msg_id: int
    #: How often it was read, by this read, too.
    read_ct: int
    enqueued_at: datetime
    #: None if it was never read, and before PGMQ 1.10.
    last_read_at: datetime | None
    #: The time at which it is visible again.
    vt: datetime
    #: An `Undecodable` where another program wrote what this Python cannot decode.
    message: Any
    #: A dict if a PgmqClient sent it. None if it has none, and before PGMQ 1.5.
    headers: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    queue_name: str
    is_partitioned: bool
    #: Its messages are lost when the server crashes.
    is_unlogged: bool
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMetrics:
    queue_name: str
    queue_length: int
    #: Ages in seconds; None if the queue is empty.
    newest_msg_age_sec: int | None
    oldest_msg_age_sec: int | None
    #: That were ever sent.
    total_messages: int
    scrape_time: datetime
    #: Messages that a reader would get now: not those that are read, or delayed. None before
    #: PGMQ 1.5.
    queue_visible_length: int | None
    #: Messages of a partitioned queue without a partition of their own. None before PGMQ 1.13.
    default_partition_length: int | None


def message_of(row: Sequence[Any]) -> Message:
    msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers = row
    return Message(
        msg_id=msg_id,
        read_ct=read_ct,
        enqueued_at=enqueued_at.astimezone(UTC),
        last_read_at=None if last_read_at is None else last_read_at.astimezone(UTC),
        vt=vt.astimezone(UTC),
        message=None if message is None else decode(message),
        headers=None if headers is None else decode(headers),
    )


def queue_of(row: Sequence[Any]) -> Queue:
    name, is_partitioned, is_unlogged, created_at = row
    return Queue(
        queue_name=name,
        is_partitioned=is_partitioned,
        is_unlogged=is_unlogged,
        created_at=created_at.astimezone(UTC),
    )


def metrics_of(row: Sequence[Any]) -> QueueMetrics:
    name, length, newest, oldest, total, scraped_at, visible, of_default = row
    return QueueMetrics(
        queue_name=name,
        queue_length=length,
        newest_msg_age_sec=newest,
        oldest_msg_age_sec=oldest,
        total_messages=total,
        scrape_time=scraped_at.astimezone(UTC),
        queue_visible_length=visible,
        default_partition_length=of_default,
    )
