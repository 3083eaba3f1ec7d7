"""Actions on batches."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
