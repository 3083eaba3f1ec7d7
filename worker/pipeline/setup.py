"""What a worker process works with: its options, and the parts that its threads share."""

from collections.abc import Sequence
from dataclasses import dataclass

from cmdbus.registry import HandlerRegistry
from cmdbus.timeouts import Timeouts
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.connections import PooledConnections
from cmdbus.worker.pipeline.telemetry import Telemetry
from cmdbus.worker.waiting.node_waiter import NodeWaiter


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    statements: ClaimStatements
    registry: HandlerRegistry
    #: In the order of their first turns.
    domains: Sequence[str]
    timeouts: Timeouts
    #: Payload bytes that may be claimed ahead of the threads.
    claim_bytes: int
    #: Percent of the claims that take the oldest commands, whatever their priority.
    age_share: int
    telemetry: Telemetry
    source: PooledConnections
    waiter: NodeWaiter
