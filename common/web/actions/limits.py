"""Actions on limits."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
