"""Which function handles which commands. The only way from a command to code."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from cmdbus.breakers import Breaker, BreakerDeclaration, DeclaredBreakers
from cmdbus.callables import name_of
from cmdbus.checks import check_name
from cmdbus.command import Command
from cmdbus.data import check_encoder
from cmdbus.declarations import Declarations
from cmdbus.declared_schedules import DeclaredSchedules
from cmdbus.errors import HandlerAlreadyRegisteredError
from cmdbus.forwarding import check_forwarded
from cmdbus.handlers import Handler, HandlerFunction, HandlerOptions, make_handler
from cmdbus.headers import FORWARDED
from cmdbus.instrument_hooks import instruments_with, observed
from cmdbus.limits import Declaration, Limit, check_declared, shared_limit
from cmdbus.middleware import A, Middlewares
from cmdbus.payloads.forms import Encoder
from cmdbus.process_hooks import H, ProcessHooks
from cmdbus.schedules import Schedule, ScheduleOptions
from cmdbus.selection import needs
from cmdbus.surroundings import Layer, ManagerFactory, managed, within
from cmdbus.typed_handlers import prepare

if TYPE_CHECKING:
    from cmdbus.context import Context

F = TypeVar("F", bound=HandlerFunction)
#: Also a method, before it has its instance.
M = TypeVar("M", bound=HandlerFunction | Callable[[Any, Command[Any], "Context"], Any])

_MARKS = "_cmdbus_marks"


def handler(domain: str, type: str, **options: Unpack[HandlerOptions]) -> Callable[[M], M]:
    """Marks a method for `HandlerRegistry.register_instance`; the method stays as it is."""
    # A mistake is an error here; the method itself is checked once it has its instance.
    make_handler(domain, type, lambda command, context: None, options)

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
    def check_states(self) -> None: ...
    def process_handlers(
        self, managers: "Mapping[str, Any]", encoder: Encoder | None, /
    ) -> list[Handler]: ...


class HandlerRegistry:
    """Handlers by domain and type, each pair once."""

    def __init__(
        self,
        *,
        encoder: Encoder | None = None,
        django: bool = False,
        forward_headers: Sequence[str] = FORWARDED,
    ) -> None:
        """`encoder` is called with what has no form in JSON, and returns one: for results and error
        details of handlers, what they give to `context`, states and commands of processes, and data
        of schedules. See CommandBus. `django`: inside of each handler Django's connection, the one
        that TASKS names or else the default one, is the session of `context.connection`, and each
        task of the project has a handler; needs the project's settings. `forward_headers` are the
        names of headers that a handler's commands and replies get of its command; see
        `Context.headers`."""
        self.forward_headers = check_forwarded(forward_headers)
        self._encoder = check_encoder(encoder)
        self._handlers: dict[tuple[str, str], Handler] = {}
        #: Functions that make further handlers, when those are first asked for.
        self._later: list[Callable[[], list[Handler]]] = []
        #: By domain and type.
        self._managers: dict[str, dict[str, Manager]] = {}
        #: Limits that types share, by name, with the domain for all of whose types they are.
        self._limits: dict[str, tuple[Limit, str | None]] = {}
        self._schedules = DeclaredSchedules(self._encoder)
        self._breakers = DeclaredBreakers()
        self.hooks = ProcessHooks()
        self._middlewares = Middlewares()
        #: Makes what Django has around each call of a handler.
        self.django_surroundings: ManagerFactory | None = None
        if django:
            import_module("cmdbus.django.registry").prepare(self)

    def handler(
        self, domain: str, type: str, **options: Unpack[HandlerOptions]
    ) -> Callable[[F], F]:
        """Registers the decorated function, and returns it unchanged."""

        def decorate(function: F) -> F:
            self._add([make_handler(domain, type, function, options, self._encoder)])
            return function

        return decorate

    def register(
        self,
        domain: str,
        type: str,
        function: HandlerFunction,
        **options: Unpack[HandlerOptions],
    ) -> None:
        self._add([make_handler(domain, type, function, options, self._encoder)])

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
            make_handler(domain, type_, getattr(instance, name), options, self._encoder)
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
            self._add(manager.process_handlers(present, self._encoder))
            self._managers[manager.domain] = present
        present[manager.type] = manager

    @overload
    def around(self, function: A, /) -> A: ...
    @overload
    def around(
        self, function: None = None, /, *, domain: str | None = None, type: str | None = None
    ) -> Callable[[A], A]: ...
    def around(
        self, function: Any = None, /, *, domain: str | None = None, type: str | None = None
    ) -> Any:
        """Puts the decorated function around each execution of its handlers, or around those of a
        `domain` or a `type`; the first one that is declared is the outermost. It is called with the
        command and its context, and is a generator function that yields once, where the handler
        runs, or returns a context manager. Returns it unchanged.

        `outcome = yield` gives what becomes of the command, an ExecutionOutcome, as does
        `context.outcome`; the handler's error is raised at the yield. What it raises itself is the
        command's error, and swallowing one completes the command without a result.
        """

        declare = self._middlewares.declaring(domain, type)
        return declare if function is None else declare(function)

    def on_start(self, function: H) -> H:
        """Has the decorated function called once in each worker process, before that is ready. What
        it raises is an error of the start. Returns it unchanged."""
        return self.hooks.add_on_start(function)

    def on_stop(self, function: H) -> H:
        """Has the decorated function called once in each worker process, after its last command;
        several of them in reverse order. Returns it unchanged."""
        return self.hooks.add_on_stop(function)

    def register_later(self, make: Callable[[], list[Handler]]) -> None:
        """Registers what `make` returns when handlers are first asked for: the modules that define
        them may import this registry's. What it raises is raised each time."""
        self._later.append(make)

    def surroundings_of(self, domain: str, type: str) -> Layer | None:
        """What is around the handler of this type in this process; None if nothing is."""
        layers: list[Layer] = []
        if observers := instruments_with("executing"):
            layers.append(partial(observed, observers))
        if self.django_surroundings is not None:
            layers.append(partial(managed, self.django_surroundings))
        layers += self._middlewares.of(domain, type)
        return within(layers) if layers else None

    def find(self, domain: str, type: str) -> Handler | None:
        return self._all().get((domain, type))

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
        of a handler's payload or of a manager's states."""
        for each in self:
            prepare(each.run)
        for managers in self._managers.values():
            for manager in managers.values():
                manager.check_states()
        self._middlewares.check([*self._all()])
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
        return self._schedules.bound([*self])

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
        return iter(self._all().values())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[tuple[str, str], Handler]:
        while self._later:
            self._add(self._later[0]())
            del self._later[0]
        return self._handlers

    def _add(self, handlers: list[Handler]) -> None:
        added = dict(self._handlers)
        for new in handlers:
            if present := added.get((new.domain, new.type)):
                raise HandlerAlreadyRegisteredError(new.domain, new.type, name_of(present.function))
            added[new.domain, new.type] = new
        self._handlers = added
