"""Connections of other libraries, in whose transactions a bus sends: SQLAlchemy's, and those of
DB-API drivers.

Each is recognised by its type's module, and a library is imported only when one of its objects
comes. Imports `cmdbus.database`.
"""
