"""HTTP: probes, metrics and status, answered from the board.

Imported by `boot`, and by the supervisor's child that answers while a start waits.
"""
