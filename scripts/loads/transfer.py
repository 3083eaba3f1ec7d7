"""Transfers of money between accounts, with compensation: an application of process managers."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cmdbus import (
    BusinessRuleError,
    Command,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    Reply,
    SendRequest,
)

registry = HandlerRegistry()
DEADLINE_SECONDS, SLOW_SECONDS = 5.0, 8.0


@dataclass
class TransferState:
    source: int
    target: int
    amount: int
    memo: str = ""
    balance: int | None = None


class Transfer(ProcessManager[TransferState]):
    domain, type = "transfers", "Transfer"

    class Step(StrEnum):
        RESERVE = "RESERVE"
        DEBIT = "DEBIT"
        CREDIT = "CREDIT"
        NOTIFY = "NOTIFY"

    def first_step(self, state: TransferState) -> Step:
        return self.Step.RESERVE

    def build_command(self, step: Step, state: TransferState) -> SendRequest:
        account = state.target if step is self.Step.CREDIT else state.source
        data = {"account": account, "amount": state.amount, "memo": state.memo}
        return SendRequest("accounts", step.capitalize(), data)

    def update_state(self, state: TransferState, step: Step, reply: Reply) -> TransferState:
        if step is self.Step.DEBIT and reply.is_success and reply.result:
            state.balance = reply.result["balance"]
        return state

    def next_step(self, state: TransferState, step: Step, reply: Reply) -> Step | None:
        steps = list(self.Step)
        return None if step is steps[-1] else steps[steps.index(step) + 1]

    def compensation(self, step: Step, state: TransferState) -> SendRequest | None:
        undo = {"RESERVE": ("Release", state.source), "DEBIT": ("Refund", state.source)}
        undo["CREDIT"] = ("Reverse", state.target)
        if step not in undo:
            return None  # A notice is not taken back.
        type_, account = undo[step]
        return SendRequest("accounts", type_, {"account": account, "amount": state.amount})

    def deadline(self, step: Step) -> float | None:
        return DEADLINE_SECONDS if step is self.Step.NOTIFY else None


registry.register_process(Transfer())

#: What each command adds to an account's balance and to its reservations, in amounts.
CHANGES = {
    "Reserve": (0, 1),
    "Release": (0, -1),
    "Debit": (-1, -1),
    "Refund": (1, 1),
    "Credit": (1, 0),
    "Reverse": (-1, 0),
}


def change(command: Command, context: Context) -> dict[str, int]:
    data = command.data
    balance, reserved = (data["amount"] * sign for sign in CHANGES[command.type])
    row = context.connection.execute(
        "UPDATE account SET balance = balance + %s, reserved = reserved + %s WHERE id = %s"
        " RETURNING balance, balance - reserved, closed",
        (balance, reserved, data["account"]),
    ).fetchone()
    if row is None:
        raise PermanentCommandError("NO_SUCH_ACCOUNT", f"there is no account {data['account']}")
    if command.type == "Reserve" and row[1] < 0:
        raise BusinessRuleError("INSUFFICIENT_FUNDS", f"account {data['account']} lacks {-row[1]}")
    if command.type == "Credit" and row[2]:
        raise BusinessRuleError("CLOSED", f"account {data['account']} is closed")
    record(command, context)
    return {"balance": row[0]}


for type_ in CHANGES:
    registry.register("accounts", type_, change)


@registry.handler("accounts", "Notify")
def notify(command: Command, context: Context) -> None:
    record(command, context)
    if command.data["memo"] == "unreadable":
        raise PermanentCommandError("UNREADABLE", "an operator must read the memo")
    if command.data["memo"] == "slow":
        time.sleep(SLOW_SECONDS)  # Its deadline fires meanwhile.


def record(command: Command, context: Context) -> None:
    """Once for each command that is completed: its id is the primary key."""
    row: tuple[Any, ...] = (command.command_id, command.correlation_id, command.type)
    context.connection.execute("INSERT INTO movement VALUES (%s, %s, %s)", row)
