"""How the processes of a fleet come up: preflight, the application, and their entry points.

Imported by the supervisor, only in processes that it has forked. May import every room of the
worker.
"""
