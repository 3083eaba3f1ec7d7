"""The steward: a node's one process for everything that needs the database but runs no commands.

Imported by `boot` alone. Rescues what dead processes held, renews leases, promotes what is due,
wakes the node's workers, and keeps history in bounds.
"""
