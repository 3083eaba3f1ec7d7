"""The steward: a node's one process for everything that needs the database but runs no commands.

Imported by `boot` and by the worker, which runs some of its rounds when it has no supervisor.
Rescues what dead processes had claimed, renews leases, promotes due commands, wakes the node's
workers, and keeps history in bounds.
"""
