"""Actions on processes."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
