"""Actions on troubleshooting."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
