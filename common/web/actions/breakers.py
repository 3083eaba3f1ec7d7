"""Actions on breakers."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
