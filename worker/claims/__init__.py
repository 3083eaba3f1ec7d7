"""Claims and settlements: their values, their statements, and the sessions that carry them.

Imported by every other room of the worker. Touches the database; of the board only values.
"""
