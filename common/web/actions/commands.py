"""Actions on commands."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
