"""One execution of a handler: its context, its connection, its transaction and its outcome.

Imported by the worker's threads and their housekeeping. Calls the application's code.
"""
