"""The socket of probes, metrics and status: made before the fork, so that it outlives every
process that answers on it."""

import errno
import ipaddress
import logging
import socket

from cmdbus.errors import CmdbusError

logger = logging.getLogger(__name__)

#: Connections that wait while one steward follows another.
_BACKLOG = 128
_REASONS = {
    errno.EADDRINUSE: "the port is taken by another process",
    errno.EACCES: "ports below 1024 need a privilege that this user does not have",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


class ListenError(CmdbusError):
    """The address cannot be bound."""

    #: Whether another process has it now.
    in_use = False


def listen(host: str, port: int) -> socket.socket:
    """A socket on which accept() never blocks."""
    listener = bound(host, port, backlog=_BACKLOG)
    _log_address(listener)
    return listener


def bound(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Without a `backlog` it is only bound: no client can connect."""
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return _bound(family, address, backlog)
    except OSError as error:
        # Errors of getaddrinfo have numbers of their own.
        reason = _REASONS.get(error.errno or 0) if not isinstance(error, socket.gaierror) else None
        refusal = ListenError(f"cannot listen on {name} (--http): {reason or error.strerror}")
        refusal.in_use = error.errno == errno.EADDRINUSE
        raise refusal from None


def _bound(
    family: int, address: tuple[str | int, ...] | tuple[int, bytes], backlog: int | None
) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port stays usable while its last connections close.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _log_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    logger.info("probes, metrics and status are at %s", url)
    if not ipaddress.ip_address(host).is_loopback:
        logger.warning(
            "any client that reaches %s can read which commands run here, without their data: "
            "restrict access to it",
            url,
        )
