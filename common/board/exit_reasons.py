"""How a process ended, in one sentence for logs and for the audit. Pure."""

import signal

from cmdbus.board.records import ExitRecord, Verdict
from cmdbus.exits import Exit, ExitStatus

VERDICT_REASONS = {
    Verdict.STUCK: "a command did not end",
    Verdict.HUNG: "its main thread hung",
    Verdict.LATE: "it did not stop by its deadline",
    Verdict.STOPPED: "a signal had suspended it",
    Verdict.CRITICAL: "it was critical and did not stop by its deadline",
}


def exit_reason(exit_record: ExitRecord) -> str:
    """A predicate: "was killed by SIGSEGV"."""
    if exit_record.orphaned:
        return "ended with its supervisor"
    if exit_record.verdict is not Verdict.NONE:
        return f"was killed: {VERDICT_REASONS[exit_record.verdict]}"
    if exit_record.signal == signal.SIGKILL:
        return "was killed by SIGKILL from outside, perhaps because memory ran out (OOM)"
    exit_status = ExitStatus(exit_record.signal, exit_record.code)
    if exit_status == ExitStatus(0, Exit.TERMINATED):
        return "was stopped by a SIGTERM that the supervisor did not send"
    return str(exit_status)
