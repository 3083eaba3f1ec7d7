"""A function with what it is registered with: its type and its options."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from cmdbus.breakers import check_bound, guarded
from cmdbus.callables import check_callable
from cmdbus.checks import check_name, check_options, check_seconds
from cmdbus.command import Command
from cmdbus.groups import MakeGroup
from cmdbus.limits import Limit, handler_limit
from cmdbus.payloads.forms import Encoder
from cmdbus.retry import RetryPolicy
from cmdbus.selection import check_tags
from cmdbus.typed_handlers import typed

if TYPE_CHECKING:
    from cmdbus.context import Context

#: Called with the command and its context; returns the command's result.
HandlerFunction = Callable[[Command[Any], "Context"], Any]
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
    #: Gives the forms of what JSON lacks in its result, and in what its context is given.
    encoder: Encoder | None = field(default=None, repr=False)
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
        what = f"the handler of {self.domain}/{self.type}"
        check_callable(self.function, what)
        tags = check_tags(f"tags of {self.domain}/{self.type}", self.tags)
        object.__setattr__(self, "tags", frozenset(tags))
        object.__setattr__(self, "policy", self.retry or RetryPolicy())
        run = self.function
        if self.breaker is not None:
            run = guarded(run, check_bound(f"breaker of {self.domain}/{self.type}", self.breaker))
        object.__setattr__(self, "run", typed(self.function, run, what))


def make_handler(
    domain: str,
    type: str,
    function: HandlerFunction,
    options: HandlerOptions,
    encoder: Encoder | None = None,
) -> Handler:
    """A ValueError says which option is wrong."""
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
        encoder=encoder,
        **given,
    )


def _limit_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list | tuple):
        raise ValueError(f"limit must be a limit's name or a list of names, not {names!r:.80}")
    return tuple(dict.fromkeys(check_name("limit", name) for name in listed))
