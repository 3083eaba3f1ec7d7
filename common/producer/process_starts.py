"""How processes are started: alone, or as a part of a batch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cmdbus.checks import check_id, check_iterable, check_name, check_whole
from cmdbus.database.pool import Connection
from cmdbus.errors import InvalidOperationError
from cmdbus.forwarding import default_headers
from cmdbus.headers import encode_with_defaults
from cmdbus.payloads.forms import form_of
from cmdbus.producer.batch_requests import check_joined
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.positions import Positions
from cmdbus.producer.requests import SendRules
from cmdbus.producer.store import AdmissionResult, Store

#: The type of the command that starts a process.
START = "process:start"


@dataclass(slots=True)
class ProcessRequest:
    """One process to start; the arguments of `CommandBus.start_process`."""

    domain: str
    type: str
    state: Any = None
    process_id: UUID | str | None = None
    #: Of the manager for which the state is written.
    version: int = 1
    #: The headers of its first command.
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """A request that passed every check. Repeated, it starts no second process."""

    process_id: UUID
    domain: str
    #: Of start_process in the schema.
    values: dict[str, object]

    @classmethod
    def of(cls, request: ProcessRequest, rules: SendRules) -> "ProcessStart":
        if not isinstance(request, ProcessRequest):
            raise ValueError(
                f"processes must be ProcessRequests, not {type(request).__name__}: "
                f"ProcessRequest(domain, type, state)"
            )
        brought = request.process_id
        process_id = new_id() if brought is None else check_id("process_id", brought)
        domain = check_name("domain", request.domain)
        state = {} if request.state is None else form_of(request.state)
        if not isinstance(state, dict):
            found = type(request.state).__name__
            raise ValueError(f"state must be a dataclass, a model or a dict, not {found}")
        values = {
            "process_id": process_id,
            "domain": domain,
            "type": check_name("type", request.type),
            "state": rules.encode(state, "state"),
            "version": check_whole("version", request.version, 1),
            "start_id": new_id(),
            "call": new_call(),
        }
        if headers := encode_with_defaults(request.headers, default_headers()):
            values["headers"] = headers
        return cls(process_id, domain, values)


def start(
    store: Store,
    connection: Connection,
    process: ProcessStart,
    batch_id: UUID | None = None,
    *,
    joins: bool = False,
) -> AdmissionResult:
    """Starts a process. One that `joins` the batch is added to it: the others are counted when it
    is created."""
    [row] = store.rows(
        connection, "start_process", **process.values, batch_id=batch_id, joins=joins
    )
    admission = AdmissionResult(*row)
    match admission.refusal:
        case "duplicate":
            raise InvalidOperationError(
                f"process {process.process_id} was started before: an id is taken once, and "
                f"`get_process` shows what became of that process"
            )
        case None | "repeated" | "closed" | "full":
            pass
        case refusal if batch_id is not None:
            check_joined(batch_id, refusal, "processes")
    return admission


def starts_of(requests: Iterable[ProcessRequest], rules: SendRules) -> list[ProcessStart]:
    """Those with ids of the caller's come first, sorted: two batches with the same ids must not
    deadlock."""
    brought: dict[UUID, ProcessStart] = {}
    others = []
    given = list(check_iterable("processes", requests, "ProcessRequests"))
    with Positions.of(given, "process").named(given) as each:
        for request in each:
            process = ProcessStart.of(request, rules)
            if request.process_id is None:
                others.append(process)
            elif brought.setdefault(process.process_id, process) is not process:
                raise InvalidOperationError(
                    f"process {process.process_id} is in this call twice: give each request an id "
                    f"of its own"
                )
    return [brought[process_id] for process_id in sorted(brought)] + others
