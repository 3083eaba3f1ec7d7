"""Actions on schedules."""

from cmdbus.web.action import Action

ACTIONS: list[Action] = []
