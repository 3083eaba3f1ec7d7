"""One execution of a handler: its connection, its transaction and its end.

Imported by the worker's threads and their housekeeping. Calls the application's code.
"""
