"""The findings of a preflight."""

from guarded import SECRET

from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.worker.boot.preflight import preflight

OK, WARNING, AWAY, FATAL = Finding


def checks(dsn: str, **changes: object) -> dict[str, Check]:
    """The worst of each name, in order."""
    given = {"app": "cmdbus.worker.demo:registry", "procs": 1, "threads": 2, **changes, "dsn": dsn}
    settings = Settings(**given)  # type: ignore[arg-type]
    found: dict[str, Check] = {}
    for check in preflight(settings):
        found[check.name] = max(
            check, found.get(check.name, check), key=lambda each: list(Finding).index(each.finding)
        )
    assert not any(SECRET in str(check) for check in found.values())
    return found


def troubles(dsn: str, **changes: object) -> list[str]:
    return [name for name, check in checks(dsn, **changes).items() if check.finding is not OK]
