"""Connecting to PostgreSQL, the schema, and every SQL statement (sql/).

Imported by every room that needs the database. Imports only the shared values of `cmdbus`.
"""
