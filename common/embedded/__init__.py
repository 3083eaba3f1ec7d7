"""A private PostgreSQL for a first run, for tests and for development.

Imported by programs, never by a worker. Touches the directories and processes of its own
cluster, and the machine's PostgreSQL programs.
"""

from cmdbus.embedded.account import state_directory
from cmdbus.embedded.embedded_postgres import EmbeddedPostgres
from cmdbus.errors import EmbeddedError

__all__ = ["EmbeddedError", "EmbeddedPostgres", "state_directory"]
