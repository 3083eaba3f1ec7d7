"""One connection of a client: what was received, what is to be sent, and until when."""

import math
import socket
from dataclasses import dataclass, field
from enum import Enum, auto

from cmdbus.web.http.heads import Head
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
