"""Which function handles which commands. The only way from a command to code."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from cmdbus.breakers import Breaker, BreakerDeclaration, DeclaredBreakers, check_bound, guarded
from cmdbus.callables import check_callable, name_of
from cmdbus.checks import check_name, check_options, check_seconds
from cmdbus.command import Command
from cmdbus.declarations import Declarations
from cmdbus.declared_schedules import DeclaredSchedules
from cmdbus.errors import HandlerAlreadyRegisteredError
from cmdbus.groups import MakeGroup
from cmdbus.limits import Declaration, Limit, check_declared, handler_limit, shared_limit
from cmdbus.process_hooks import H, ProcessHooks
from cmdbus.retry import RetryPolicy
from cmdbus.schedules import Schedule, ScheduleOptions
from cmdbus.selection import check_tags, needs
from cmdbus.typed_handlers import prepare, typed

if TYPE_CHECKING:
    from cmdbus.context import Context

#: Called with the command and its context; returns the command's result.
HandlerFunction = Callable[[Command[Any], "Context"], Any]
F = TypeVar("F", bound=HandlerFunction)
#: Also a method, before it has its instance.
M = TypeVar("M", bound=HandlerFunction | Callable[[Any, Command[Any], "Context"], Any])

_MARKS = "_cmdbus_marks"
#: The options of a handler that make a limit of its own.
_LIMIT_OPTIONS = ("concurrency", "rate", "burst", "ordered", "on_trouble", "fair")


class HandlerOptions(TypedDict, total=False):
    """What a handler may be registered with; None stands for the worker's default, or for no
    limit. Limits hold for each key by itself, and for all commands of the type without one."""

    timeout: float | None
    #: Bounds one SQL statement in the handler's transaction.
    statement_timeout: float | None
    retry: RetryPolicy | None
    #: Commands that may run at once, on all nodes.
    concurrency: int | None
    #: Starts in a time, like "100/min", and how many of them at once.
    rate: str | None
    burst: int | None
    #: One at a time in the order of sending, retries included. While one is in troubleshooting,
    #: `on_trouble` lets the others wait ("block", the default) or go on ("skip").
    ordered: bool
    on_trouble: str | None
    #: Keys take turns.
    fair: bool
    #: Names of limits that the registry declares for several types.
    limit: str | Sequence[str] | None
    #: Only workers that have all of these tags claim its commands.
    tags: Collection[str]
    #: The name of a circuit breaker that the registry declares.
    breaker: str | None


@dataclass(frozen=True, slots=True)
class Handler:
    """A function with its options: see HandlerOptions."""

    domain: str
    type: str
    function: HandlerFunction
    _: KW_ONLY
    timeout: float | None = None
    statement_timeout: float | None = None
    retry: RetryPolicy | None = None
    own_limit: Limit | None = None
    #: Names.
    shared_limits: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    #: Its name.
    breaker: str | None = None
    #: The same for all types of a domain whose commands may be handled together.
    group: MakeGroup | None = field(default=None, repr=False)
    #: `retry`, or the default.
    policy: RetryPolicy = field(init=False, repr=False)
    #: `function`, inside the breaker if there is one, with its payload read if that has a type.
    run: HandlerFunction = field(init=False, repr=False)

    @property
    def name(self) -> str:
        """Of its type, as claims and limits name it."""
        return f"{self.domain} {self.type}"

    def __post_init__(self) -> None:
        check_name("domain", self.domain)
        check_name("type", self.type)
        for name in ("timeout", "statement_timeout"):
            if (seconds := getattr(self, name)) is not None:
                check_seconds(f"{name} of {self.domain}/{self.type}", seconds)
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise ValueError(f"retry must be a RetryPolicy, not {self.retry!r:.80}")
        check_callable(self.function, f"the handler of {self.domain}/{self.type}")
        tags = check_tags(f"tags of {self.domain}/{self.type}", self.tags)
        object.__setattr__(self, "tags", frozenset(tags))
        object.__setattr__(self, "policy", self.retry or RetryPolicy())
        run = self.function
        if self.breaker is not None:
            run = guarded(run, check_bound(f"breaker of {self.domain}/{self.type}", self.breaker))
        what = f"the handler of {self.domain}/{self.type}"
        object.__setattr__(self, "run", typed(self.function, run, what))


def handler(domain: str, type: str, **options: Unpack[HandlerOptions]) -> Callable[[M], M]:
    """Marks a method for `HandlerRegistry.register_instance`; the method stays as it is."""
    # A mistake is an error here; the method itself is checked once it has its instance.
    _made(domain, type, lambda command, context: None, options)

    def mark(function: M) -> M:
        made = domain, type, options
        setattr(function, _MARKS, (*getattr(function, _MARKS, ()), made))
        return function

    return mark


class Manager(Protocol):
    """See ProcessManager."""

    domain: str
    type: str

    def check_manager(self) -> None: ...
    def process_handlers(self, managers: "Mapping[str, Any]", /) -> list[Handler]: ...


class HandlerRegistry:
    """Handlers by domain and type, each pair once."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {}
        #: By domain and type.
        self._managers: dict[str, dict[str, Manager]] = {}
        #: Limits that types share, by name, with the domain for all of whose types they are.
        self._limits: dict[str, tuple[Limit, str | None]] = {}
        self._schedules = DeclaredSchedules()
        self._breakers = DeclaredBreakers()
        self.hooks = ProcessHooks()

    def handler(
        self, domain: str, type: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[F], F]:
        """Registers the decorated function, and returns it unchanged."""

        def decorate(function: F) -> F:
            self._add([_made(domain, type, function, options)])
            return function

        return decorate

    def register(
        self,
        domain: str,
        type: str,
        function: HandlerFunction,
        **options: Unpack[HandlerOptions],
    ) -> None:
        self._add([_made(domain, type, function, options)])

    def limit(
        self,
        name: str,
        *,
        domain: str | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        per: str = "fleet",
    ) -> None:
        """Declares a limit for the commands of several types together, whatever their keys: of all
        handlers with `limit=name`, and of all types of `domain`, if that is given.

        `concurrency` is how many may run at once, `rate` how many may start in a time, like
        "100/min", and `burst` how many of these at once; `per` is "fleet" (on all nodes together)
        or "node" (on each).
        """
        check_name("limit", name)
        if domain is not None:
            check_name("domain", domain)
        if name in self._limits:
            raise ValueError(f"the limit {name} is declared twice: give each a name of its own")
        made = shared_limit(name, concurrency=concurrency, rate=rate, burst=burst, per=per)
        self._limits[name] = made, domain

    def schedule(
        self,
        cron: str | None = None,
        *,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[M], M]:
        """Declares that a command of the type which the decorated function handles is sent at each
        tick of the line `cron`, like "0 3 * * *", or `every` so often; see ScheduleOptions. `name`
        is by default the domain and type. Returns the function unchanged."""
        return self._schedules.declare(cron, name, options)

    def breaker(self, breaker: Breaker) -> None:
        """Declares a circuit breaker, for all calls of handlers with `breaker=` its name, and for
        those inside `with context.breaker(name)`."""
        self._breakers.add(breaker)

    def register_instance(self, instance: object) -> None:
        """Registers the public methods marked with `handler`: all of them, or none."""
        found = [
            _made(domain, type_, getattr(instance, name), options)
            for name in dir(type(instance))
            if not name.startswith("_")
            # Looked up on the class: properties of the instance must not run.
            for domain, type_, options in getattr(getattr(type(instance), name), _MARKS, ())
        ]
        if not found:
            raise ValueError(
                f"{type(instance).__name__} has no public method marked with "
                f"@handler(domain, type): nothing to register"
            )
        self._add(found)

    def register_process(self, manager: Manager) -> None:
        """Registers an instance of a subclass of ProcessManager. The domain's type Reply, and
        types that begin with `process:`, are handled by the processes of the domain."""
        if isinstance(manager, type) or not hasattr(manager, "process_handlers"):
            raise ValueError(
                f"register_process takes an instance of a ProcessManager, not {manager!r:.80}"
            )
        manager.check_manager()
        present = self._managers.get(manager.domain, {})
        if other := present.get(manager.type):
            raise HandlerAlreadyRegisteredError(manager.domain, manager.type, name_of(type(other)))
        if not present:
            self._add(manager.process_handlers(present))
            self._managers[manager.domain] = present
        present[manager.type] = manager

    def on_start(self, function: H) -> H:
        """Has the decorated function called once in each worker process, before that is ready. What
        it raises is an error of the start. Returns it unchanged."""
        return self.hooks.add_on_start(function)

    def on_stop(self, function: H) -> H:
        """Has the decorated function called once in each worker process, after its last command;
        several of them in reverse order. Returns it unchanged."""
        return self.hooks.add_on_stop(function)

    def find(self, domain: str, type: str) -> Handler | None:
        return self._handlers.get((domain, type))

    @property
    def domains(self) -> list[str]:
        return sorted({handler.domain for handler in self})

    def selected(self, domains: Collection[str], tags: Collection[str]) -> list[Handler]:
        """The handlers of these domains, or of all if there are none, which a worker with these
        tags runs. A ValueError if it runs none of them."""
        selected = [
            each
            for each in self
            if (not domains or each.domain in domains) and each.tags.issubset(tags)
        ]
        lacking = self.lacking(domains, tags)
        if lacking and not selected:
            raise ValueError(
                f"no type is left that it can run: {needs(lacking)}, which it does not have; give "
                f"it tags with --tag, or Worker(tags=...)"
            )
        return selected

    def lacking(self, domains: Collection[str], tags: Collection[str]) -> dict[str, list[str]]:
        """The types that a worker with these tags does not run, as "domain type", each with the
        tags that it lacks."""
        found = (each for each in self if not domains or each.domain in domains)
        lacking = {each.name: sorted(each.tags.difference(tags)) for each in found}
        return {name: missing for name, missing in lacking.items() if missing}

    def declarations(self) -> Declarations:
        """All that it declares; a ValueError says what is wrong with any of it, or with the type
        of a handler's payload."""
        for each in self:
            prepare(each.run)
        return Declarations(
            limits=self.limits(),
            breakers=self.breakers(),
            schedules=self.schedules(),
            tags=self.tags(),
        )

    def tags(self) -> dict[str, list[str]]:
        """Those of the types that have any, by "domain type"."""
        return self.lacking((), ())

    def limits(self) -> list[Declaration]:
        """All that it declares; a ValueError if a handler has a limit that it does not declare."""
        uses = {each.name: each.shared_limits for each in self}
        check_declared(uses, self._limits)
        own = [Declaration(each.name, each.own_limit) for each in self if each.own_limit]
        return [*own, *(self._shared(name, uses) for name in self._limits)]

    def schedules(self) -> list[Schedule]:
        """All that it declares; a ValueError if one belongs to no handler, or to several."""
        return self._schedules.bound(self)

    def breakers(self) -> list[BreakerDeclaration]:
        """All that it declares; a ValueError if a handler has a breaker that is not declared."""
        return self._breakers.bound({each.name: each.breaker for each in self})

    def find_breaker(self, name: str) -> Breaker:
        return self._breakers.find(name)

    def _shared(self, name: str, uses: Mapping[str, Sequence[str]]) -> Declaration:
        limit, domain = self._limits[name]
        covers = sorted(type_ for type_, used in uses.items() if name in used)
        return Declaration(name, limit, (*covers, domain) if domain else tuple(covers))

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    def _add(self, handlers: list[Handler]) -> None:
        added = dict(self._handlers)
        for new in handlers:
            if present := added.get((new.domain, new.type)):
                raise HandlerAlreadyRegisteredError(new.domain, new.type, name_of(present.function))
            added[new.domain, new.type] = new
        self._handlers = added


def _made(domain: str, type: str, function: HandlerFunction, options: HandlerOptions) -> Handler:
    check_options("a handler", options, HandlerOptions.__annotations__)
    given: dict[str, Any] = dict(options)
    names = given.pop("limit", None)
    limits = {name: given.pop(name) for name in _LIMIT_OPTIONS if name in given}
    return Handler(
        domain,
        type,
        function,
        own_limit=handler_limit(f"{domain}/{type}", **limits),
        shared_limits=_limit_names(names),
        **given,
    )


def _limit_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list | tuple):
        raise ValueError(f"limit must be a limit's name or a list of names, not {names!r:.80}")
    return tuple(dict.fromkeys(check_name("limit", name) for name in listed))
