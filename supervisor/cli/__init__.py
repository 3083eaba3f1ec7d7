"""The commands `cmdbus-supervise` and `cmdbus`: options, output, and the sentences of errors.

Imported by the console scripts alone. Loads a database driver only in the sub-commands that
need one.
"""
