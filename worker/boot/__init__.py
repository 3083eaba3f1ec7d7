"""How the processes of a fleet come up: preflight, the application, and their entry points.

Imported by the supervisor, only in processes that it has forked. Does not import the rooms of a
worker's threads: pipeline, execution and waiting.
"""
