"""Of the project that consists of this app. The database is that of CMDBUS_DSN."""

import os
from importlib.util import find_spec

from psycopg.conninfo import conninfo_to_dict

#: The queue, and so the domain.
QUEUE = "tasks"
#: The alias of the backend that cmdbus is compared with.
PEER = "peer"

SECRET_KEY = "of no use outside the bench"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
_BACKPORT = [] if find_spec("django.tasks") else ["django_tasks"]
_PEER = ["django_tasks_db"] if find_spec("django_tasks_db") else []
INSTALLED_APPS = ["benches.orm", "cmdbus.django", *_BACKPORT, *_PEER]

_server = conninfo_to_dict(os.environ["CMDBUS_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _server["dbname"],
        **{name.upper(): _server.get(name, "") for name in ("user", "password", "host", "port")},
    }
}
TASKS = {"default": {"BACKEND": "cmdbus.django.CommandBusBackend", "QUEUES": [QUEUE]}}
if _PEER:
    TASKS[PEER] = {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": [QUEUE]}
