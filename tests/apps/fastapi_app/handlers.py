"""What the workers run."""

from cmdbus import BusinessRuleError, Command, Context, HandlerRegistry
from fastapi_app.models import MakeTransfer

registry = HandlerRegistry()

ADD = "UPDATE accounts SET balance = balance + %s WHERE id = %s RETURNING balance"
NOTE = "INSERT INTO entries (transfer_id, account_id, amount) VALUES (%s, %s, %s)"


@registry.handler("bank", "MakeTransfer")
def make_transfer(command: Command[MakeTransfer], context: Context) -> None:
    """Both changes and their entries commit with the command, or none does."""
    transfer = command.payload
    changes = {transfer.source: -transfer.amount, transfer.target: transfer.amount}
    for account, amount in sorted(changes.items()):  # in one order, so that no two deadlock
        row = context.connection.execute(ADD, (amount, account)).fetchone()
        if row is None or row[0] < 0:
            raise BusinessRuleError("INSUFFICIENT_FUNDS", f"account {account} has not {-amount}")
        context.connection.execute(NOTE, (command.command_id, account, amount))
