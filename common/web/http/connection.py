"""One connection of a client: what was received, what is to be sent, and until when."""

import math
import socket
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus

from cmdbus.web.http.heads import HEAD_END, BadRequestError, Head, parse_head
from cmdbus.web.http.settings import ServerSettings
from cmdbus.web.http.streams import Stream


class State(Enum):
    #: Between two requests.
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    #: The application runs.
    BUSY = auto()
    SENDING = auto()
    STREAMING = auto()
    #: All is sent, and the client has not closed: it may not have read all of it.
    LINGERING = auto()


#: What can be closed for a new client, the most dispensable first.
DISPENSABLE = (State.LINGERING, State.IDLE, State.HEAD, State.BODY, State.SENDING)


@dataclass(eq=False, slots=True)
class Connection:
    socket: socket.socket
    peer: str
    state: State
    #: By the monotonic clock; infinite while no client is waited for.
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    #: Where the end of the head is looked for next.
    scanned: int = 0
    head: Head | None = None
    sending: memoryview = field(default_factory=lambda: memoryview(b""))
    keeps: bool = False
    #: What is watched in the selector; 0: nothing.
    events: int = 0
    ignored: int = 0
    stream: Stream | None = None

    def enter(self, state: State, deadline: float = math.inf) -> None:
        self.state, self.deadline = state, deadline

    def take_head(self, settings: ServerSettings) -> Head | None:
        """Out of what was received; None until it is complete."""
        received = self.received
        while received[:2] == b"\r\n":  # Some clients end a body with an empty line.
            del received[:2]
            self.scanned = 0
        end = received.find(HEAD_END, max(0, self.scanned - 3))
        self.scanned = len(received)
        if end > settings.head_bytes or (end < 0 and len(received) > settings.head_bytes):
            raise BadRequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request has more than {settings.head_bytes} bytes",
            )
        if end < 0:
            return None
        head = parse_head(bytes(received[:end]), settings.single)
        del received[: end + len(HEAD_END)]
        self.scanned = 0
        if head.body_bytes > settings.body_bytes:
            raise BadRequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has more than {settings.body_bytes} bytes",
            )
        return head
