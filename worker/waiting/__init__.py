"""Waiting for work: notifications, timers, wake pipes, and who has to be woken.

Imported by workers and stewards. Touches the listener's session, the board and the pipes.
"""
