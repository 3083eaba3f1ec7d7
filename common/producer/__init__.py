"""The producer's API: send commands, read them, steer domains, resolve troubleshooting.

Its public names are exported by `cmdbus`. Imports `cmdbus.database`; knows neither the board
nor workers.
"""
