"""Commands that write rows one after the other, and go on in several executions."""

import time

from cmdbus import Command, Context

ITERATE = "Iterate"
#: Rows after which an execution gives its command back.
_ROWS = 3


def iterate(command: Command, context: Context, run: str) -> None:
    """Each row shares its transaction with the checkpoint after it."""
    asked = command.data
    for number in range(context.resumed or 0, asked["rows"]):
        context.connection.execute(
            "INSERT INTO chaos.iteration (command_id, number) VALUES (%s, %s)",
            (command.command_id, number),
        )
        time.sleep(asked["seconds"])
        context.checkpoint(number + 1)
        if number + 1 < asked["rows"] and (number % _ROWS == _ROWS - 1 or context.stopping):
            context.again()
            return
