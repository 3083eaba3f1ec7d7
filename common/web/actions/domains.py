"""Actions on domains."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
