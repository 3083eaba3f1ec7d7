"""What a run of chaos found, as text and as one object."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from fault_injection.checking import Finding, outcomes
from fault_injection.fault_injector import FaultInjector
from fault_injection.history import History, Recovery
from fault_injection.kinds import KINDS
from fault_injection.plan import Plan

#: Violations of a check that are printed.
_SHOWN = 8


def report(
    plan: Plan, history: History, findings: Sequence[Finding], injector: FaultInjector
) -> str:
    unknown = outcomes(history.calls)["unknown"]
    lines = [
        "",
        f"seed {plan.seed}: {len(history.rows):,} commands by {len(history.calls):,} calls "
        f"({unknown} unknown), {len(history.moves):,} moves, {len(history.marks):,} marks, "
        f"{len(history.effects):,} effects, {len(history.messages or ()):,} messages, "
        f"{len(history.counts)} snapshots",
        "",
        f"{'fault':<23} {'times':>5} {'median':>8} {'worst':>8}   until everything works again",
    ]
    for name, times, middle, worst in recovered(history.recoveries):
        hits = f"   {injector.hits[name]} times at its moment" if name in injector.hits else ""
        lines.append(f"{name:<23} {times:>5} {middle:>8} {worst:>8}{hits}")
    lines += [f"{name:<23}     - ({why})" for name, why in sorted(injector.skipped.items())]
    lines.append("")
    for finding in findings:
        verdict = f"{len(finding.violations)} VIOLATIONS" if finding.violations else "ok"
        if finding.name == "the-server-is-content" and history.server is None:
            verdict = "not checked (only on a server of its own)"
        lines.append(f"{finding.about:<56} {verdict}")
        lines += [f"     - {violation}" for violation in finding.violations[:_SHOWN]]
        if len(finding.violations) > _SHOWN:
            lines.append(f"     - and {len(finding.violations) - _SHOWN} more")
    return "\n".join(lines)


def recovered(recoveries: Sequence[Recovery]) -> Iterator[tuple[str, int, str, str]]:
    for name in KINDS:
        seconds = [one.seconds for one in recoveries if one.kind == name]
        if seconds:
            found = [s if s is not None else float("inf") for s in seconds]
            yield name, len(found), f"{median(found):.2f} s", f"{max(found):.2f} s"


def as_object(
    plan: Plan, history: History, findings: Sequence[Finding], injector: FaultInjector
) -> dict[str, Any]:
    return {
        "seed": plan.seed,
        "ok": not any(finding.violations for finding in findings),
        "commands": len(history.rows),
        "calls": dict(outcomes(history.calls)),
        "messages": len(history.messages or ()),
        "faults": len(history.recoveries),
        "skipped": sorted(injector.skipped),
        "hits": dict(injector.hits),
        "violations": {f.name: list(f.violations) for f in findings if f.violations},
        "checked": [finding.name for finding in findings],
        "recoveries_s": {
            name: sorted(o.seconds for o in history.recoveries if o.kind == name and o.seconds)
            for name in KINDS
            if any(one.kind == name for one in history.recoveries)
        },
    }
