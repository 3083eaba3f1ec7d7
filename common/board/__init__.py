"""The board: the shared memory in which the processes of a node show what they do.

Imported by workers, stewards, the supervisor and `cmdbus ps`. Touches the board's file and
pipes; never the database, and no process waits here for another one.
"""
