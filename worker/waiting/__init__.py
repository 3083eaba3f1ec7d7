"""Waiting for work: notifications, timers, wake pipes, and when to ask senders for notifications.

Imported by workers and stewards. Touches the listener's session, the board and the pipes.
"""
