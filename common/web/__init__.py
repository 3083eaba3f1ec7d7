"""The operators' page: what a bus does, in a browser, and the actions of an operator.

`application` makes it as a WSGI application, for Django, Flask and others; `cmdbus web` serves it
by itself. Uses the producer's methods alone: a program of one's own could do the same. Start
reading at wsgi.py; what is shown is in views/, what can be done in actions/, and the page itself in
static/.
"""

from cmdbus.producer.bus import CommandBus
from cmdbus.web.security.access import FunctionAccess, User
from cmdbus.web.security.gate import Role
from cmdbus.web.serving import page
from cmdbus.web.wsgi import Application

__all__ = ["application"]

#: Bytes of a secret, at least.
_MIN_SECRET = 16


def application(
    bus: CommandBus,
    *,
    user: User | None = None,
    role: Role = "operator",
    secret: str | bytes | None = None,
    operator: str | None = None,
) -> Application:
    """A WSGI application that shows `bus`, below whatever prefix it is mounted.

    `user(environ)` returns the name of the user whom the application around it has signed in, or
    None, and then the page is refused. Without it the page is for this machine alone: it refuses
    other addresses, other names in Host, and what came through a proxy. A proxy that adds no
    header at all cannot be told from a browser, so give a `user` wherever there is one.

    `role` is "operator" or "viewer", who changes nothing, or a function of `environ` that returns
    one of them. `secret`, of 16 bytes or more, signs the cookie; several processes need the same
    one, and without it each makes its own. `operator` is the name for the audit trail where there
    is no `user`; without both the page asks for one.
    """
    key = secret.encode() if isinstance(secret, str) else secret
    if key is not None and len(key) < _MIN_SECRET:
        raise ValueError(f"secret must have at least {_MIN_SECRET} bytes")
    access = None if user is None else FunctionAccess(user)
    return page(bus, access, role=role, secret=key, operator=operator)
