"""The bounds of a server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    #: Open at the same time; a new one replaces the oldest that is idle or slow.
    connections: int = 256
    #: Of these, at most, streams of events.
    streams: int = 96
    #: That run the application, for paths below /api/ and for others.
    threads: int = 16
    quick_threads: int = 4
    head_bytes: int = 16 * 1024
    #: Of one body, which the application bounds more closely; and of all that are received at the
    #: same time.
    body_bytes: int = 4 * 1024**2
    all_bodies_bytes: int = 64 * 1024**2
    #: Seconds, in all, for a client to send a head, to send a body, and to take a response.
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    send_seconds: float = 30.0
    #: Seconds between two requests, and for a client to close after the last response.
    idle_seconds: float = 30.0
    linger_seconds: float = 2.0
    #: Seconds of a stream: its client then comes again, and must still be admitted.
    stream_seconds: float = 3600.0
    #: Names of fields that a request may not repeat, besides the usual ones.
    single: tuple[str, ...] = ()
