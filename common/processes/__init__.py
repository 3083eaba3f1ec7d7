"""Process managers: flows of several commands, each step durable, and undone if a later one fails.

Imported by the application, which registers its managers, and run by the worker's threads, as
handlers. Calls the application's code.
"""
