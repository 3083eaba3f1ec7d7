"""The operators' page: what a bus does, in a browser, and the actions of an operator.

`application` makes it as a WSGI application, for Django, Flask and others; `cmdbus web` serves it
by itself. Uses the producer's methods alone: a program of one's own could do the same. Start
reading at wsgi.py; what is shown is in views/, what can be done in actions/, and the page itself in
static/.
"""

from cmdbus.producer.bus import CommandBus
from cmdbus.web.wsgi import Application

__all__ = ["application"]


def application(
    bus: CommandBus, *, role: str = "operator", operator: str | None = None
) -> Application:
    """A WSGI application that shows `bus`, below whatever prefix it is mounted.

    With the `role` viewer every action is refused. `operator` is the name for the audit trail;
    without it the page asks for one.
    """
    from cmdbus.web.actions import ACTIONS
    from cmdbus.web.views import VIEWS

    return Application(bus, VIEWS, ACTIONS, role=role, operator=operator)
