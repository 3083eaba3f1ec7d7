"""Circuit breakers: when calls to another system are let through. The values that registries
declare, what counts as a failure, and the sentences about them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from cmdbus.checks import check_name, check_seconds, check_whole, did_you_mean, shown
from cmdbus.counting import seconds_text
from cmdbus.errors import (
    BreakerOpenError,
    BusinessRuleError,
    PermanentCommandError,
    TransientCommandError,
)

#: Failures on record are kept one by one.
MAX_FAILURES, MAX_PROBES = 1000, 1000
#: A deferred command is due later than its cooldown by a random share of it, at most this one, and
#: by at most these seconds. It may run that much later than the breaker closes.
_JITTER, _MAX_JITTER_SECONDS = 0.1, 0.5
#: Seconds by which a command is deferred at least while other calls are probes.
_MIN_DEFERRAL_SECONDS = 0.5


class BreakerState(StrEnum):
    """CLOSED --failures--> OPEN --cooldown--> HALF_OPEN --a good probe--> CLOSED, or after any
    other one OPEN again."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    #: Some calls are let through, as probes.
    HALF_OPEN = "HALF_OPEN"


class Verdict(StrEnum):
    """What a call says about the other system."""

    #: It has answered.
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    #: An error that does not count: nothing is known, and after a probe the breaker opens again.
    OTHER = "OTHER"
    #: The call was cut off from outside, or never made; a probe gives its place back.
    NOTHING = "NOTHING"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerTerms:
    """When a breaker opens, and for how long."""

    #: Failures within `window` seconds, without a success between them, that open it.
    failures: int
    window: float
    #: Seconds from its opening to the first probe.
    cooldown: float
    #: Calls that are let through at a time, on all nodes together, until one has succeeded.
    probes: int

    def __str__(self) -> str:
        failures = (
            f"{self.failures} failure{'s' * (self.failures > 1)} in {seconds_text(self.window)}"
        )
        probes = f"{self.probes} probe{'s' * (self.probes > 1)}"
        return f"opens at {failures}, for {seconds_text(self.cooldown)}, then {probes}"


#: The columns of the terms in the schema.
COLUMNS = {
    "failures": "failures",
    "window": "window_seconds",
    "cooldown": "cooldown_seconds",
    "probes": "probes",
}


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker, which a registry declares for the calls to one other system.

    It opens at the `failures`-th failure within `window` seconds without a success between them, on
    all nodes together. While it is open, no call is made. After `cooldown` seconds up to `probes`
    calls at a time are let through: the first that succeeds closes it, and one that fails opens it
    for another cooldown. `counts` are the exceptions that count as failures; a timeout of the
    command counts as a TimeoutError.
    """

    name: str
    failures: int = 5
    #: Seconds, or a timedelta; read as seconds.
    window: float | timedelta = 60.0
    cooldown: float | timedelta = 30.0
    probes: int = 1
    counts: tuple[type[BaseException], ...] = (TransientCommandError, TimeoutError)

    def __post_init__(self) -> None:
        name = check_name("breaker", self.name)
        for option, value in check_terms(name, self._terms).items():
            object.__setattr__(self, option, value)
        object.__setattr__(self, "counts", _check_counts(name, self.counts))

    @property
    def _terms(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}

    @property
    def terms(self) -> BreakerTerms:
        return BreakerTerms(**self._terms)

    def verdict(self, error: BaseException | None) -> Verdict:
        """Of a call that ended with this error, if any; errors that have cut it off are the
        caller's to know."""
        if error is None:
            return Verdict.SUCCESS
        if isinstance(error, BreakerOpenError) and error.name == self.name:
            return Verdict.NOTHING
        if isinstance(error, self.counts):
            return Verdict.FAILURE
        if isinstance(error, BusinessRuleError | PermanentCommandError):
            return Verdict.SUCCESS
        return Verdict.OTHER


@dataclass(frozen=True, slots=True)
class BreakerDeclaration:
    """What an app declares."""

    name: str
    terms: BreakerTerms
    #: Names of exceptions.
    counts: tuple[str, ...]
    #: The types that are bound to it, as 'domain type'.
    covers: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any]) -> "BreakerDeclaration":
        """From the columns of breaker_declared."""
        terms = BreakerTerms(**{field: row[column] for field, column in COLUMNS.items()})
        return cls(name, terms, tuple(row["counts"]), tuple(row["covers"]))

    @property
    def row(self) -> dict[str, Any]:
        terms = {COLUMNS[name]: value for name, value in asdict(self.terms).items()}
        return {"name": self.name, "counts": self.counts, "covers": self.covers, **terms}

    @property
    def what(self) -> str:
        covers = ", ".join(name.replace(" ", "/") for name in self.covers)
        return f"{self.terms}, counts {', '.join(self.counts)}" + f", for {covers}" * bool(covers)

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


def check_terms(name: str, terms: Mapping[str, Any]) -> dict[str, Any]:
    """The terms that are given of the breaker `name`."""
    checked: dict[str, Any] = {}
    for option, value in terms.items():
        what = f"{option} of the breaker {name}"
        if option in ("failures", "probes"):
            most = MAX_FAILURES if option == "failures" else MAX_PROBES
            checked[option] = check_whole(what, value, 1, most)
        else:
            is_delta = isinstance(value, timedelta)
            checked[option] = check_seconds(what, value.total_seconds() if is_delta else value)
    return checked


def _check_counts(name: str, counts: object) -> tuple[type[BaseException], ...]:
    listed = counts if isinstance(counts, tuple | list) else (counts,)
    for each in listed:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ValueError(
                f"counts of the breaker {name} must be exception classes, not {shown(each)}"
            )
    if not listed:
        raise ValueError(
            f"counts of the breaker {name} is empty: name the exceptions that are failures"
        )
    return tuple(listed)


class DeclaredBreakers:
    """Those of a registry, by name."""

    def __init__(self) -> None:
        self._breakers: dict[str, Breaker] = {}

    def add(self, breaker: Breaker) -> None:
        if not isinstance(breaker, Breaker):
            raise ValueError(f"breaker takes a Breaker, not {breaker!r:.80}")
        if breaker.name in self._breakers:
            raise ValueError(
                f"the breaker {breaker.name} is declared twice: give each a name of its own"
            )
        self._breakers[breaker.name] = breaker

    def find(self, name: str) -> Breaker:
        """For a call. A PermanentCommandError if it is not declared: no later attempt finds it."""
        if name not in self._breakers:
            what = f"context.breaker({name!r:.80}) is a breaker that the registry does not declare"
            raise PermanentCommandError("UNKNOWN_BREAKER", f"{what}: {self._hint(str(name))}")
        return self._breakers[name]

    def bound(self, uses: Mapping[str, str | None]) -> list[BreakerDeclaration]:
        """`uses`: the breaker of each type that may be bound to one, by "domain type". A ValueError
        if it is not declared."""
        for type_, used in uses.items():
            if used is not None and used not in self._breakers:
                what = f"the handler of {type_.replace(' ', '/')} has the breaker {used!r}"
                raise ValueError(f"{what}, which its registry does not declare: {self._hint(used)}")
        return [
            BreakerDeclaration(
                name,
                breaker.terms,
                tuple(each.__qualname__ for each in breaker.counts),
                tuple(sorted(type_ for type_, used in uses.items() if used == name)),
            )
            for name, breaker in self._breakers.items()
        ]

    def _hint(self, name: str) -> str:
        question = did_you_mean(name, self._breakers)
        return question or "declare it with registry.breaker(Breaker(...))"


def check_bound(what: str, breaker: object) -> str:
    """The name of the breaker of a handler."""
    if isinstance(breaker, Breaker):
        raise ValueError(f"{what} must be its name: pass {breaker.name!r}")
    if not isinstance(breaker, str):
        raise ValueError(f"{what} must be the name of one breaker, not {shown(breaker)}")
    return check_name(what, breaker)


def guarded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The handler's function with the breaker around all of it."""

    def call(command: Any, context: Any) -> Any:
        with context.breaker(name):
            return function(command, context)

    return call


def deferral(cooldown: float, retry_in: float | None, changed_ago: float, rand: float) -> float:
    """Seconds until a command that an open breaker has kept from its call is tried again.

    `retry_in`: until probes are let through; None, if an operator keeps it open. Once they are,
    the pause grows with the time since then, as each try is an execution. `rand` is from 0 to 1.
    """
    if retry_in is None:
        return max(cooldown, 0.2 * changed_ago) * (1 + _JITTER * rand)
    if retry_in > 0:
        return retry_in + min(_JITTER * cooldown, _MAX_JITTER_SECONDS) * rand
    return min(max(_MIN_DEFERRAL_SECONDS, -retry_in), cooldown) * (0.5 + 0.5 * rand)
