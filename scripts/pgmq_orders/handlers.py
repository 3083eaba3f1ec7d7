"""The fleet's app: it handles the commands that a bridge makes of messages."""

from cmdbus import BusinessRuleError, Command, Context, HandlerRegistry

#: What one order may cost.
LIMIT = 1_000

registry = HandlerRegistry()

_RECEIPT = """
    INSERT INTO receipt (number, amount, tenant) VALUES (%s, %s, %s)
    RETURNING 'receipt ' || id"""


@registry.handler("orders", "Charge")
def charge(command: Command, context: Context) -> dict[str, str]:
    """The receipt, the end of the command and the reply are one transaction."""
    number, amount = command.data["order"], command.data["amount"]
    if amount > LIMIT:
        raise BusinessRuleError("LIMIT_EXCEEDED", f"{amount} is more than {LIMIT}")
    values = (number, amount, command.headers.get("tenant"))
    row = context.connection.execute(_RECEIPT, values).fetchone()
    assert row is not None
    return {"receipt": row[0]}
