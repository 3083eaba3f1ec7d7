"""What an application writes: the steps of a process, and what they change in its state."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar, get_args, get_origin

from cmdbus.checks import check_name, check_whole, shown
from cmdbus.errors import PermanentCommandError, TransientCommandError
from cmdbus.processes.handlers import ProcessHandlers
from cmdbus.producer.requests import SendRequest
from cmdbus.registry import Handler
from cmdbus.reply import Reply

S = TypeVar("S")
# Inside the class, `type` is the type of its processes.
_Steps = type[StrEnum]
_Class = type[Any]


class ProcessManager(Generic[S]):
    """Subclass it as `class Transfer(ProcessManager[TransferState])`, with a dataclass for the
    state, and register an instance with `registry.register_process`. Its methods are called by
    workers, in the transaction that moves a process on: they decide, and have no effects of their
    own. The fields of the state hold JSON values.
    """

    #: The domain of its processes: replies to their commands come there.
    domain: str
    type: str
    Step: _Steps
    #: That of the state's format: the states of older ones pass `upgrade`.
    version: int = 1

    def first_step(self, state: S) -> StrEnum:
        raise NotImplementedError

    def build_command(self, step: Any, state: S) -> SendRequest | list[SendRequest]:
        """The command of a step. Its reply, and its correlation id, are the process's. A list is
        sent as a batch: the step has ended when all of them have, and has failed unless all were
        completed. Then `reply.result` has the counters of the batch, and its `failures`."""
        raise NotImplementedError

    def update_state(self, state: S, step: Any, reply: Reply) -> S:
        """The state after the reply to a step's command: `reply.outcome` is SUCCESS, FAILED or
        CANCELED, `reply.result` the handler's result or the failure."""
        return state

    def next_step(self, state: S, step: Any, reply: Reply) -> StrEnum | None:
        """The step after one that succeeded; None: the process is COMPLETED."""
        raise NotImplementedError

    def compensation(self, step: Any, state: S) -> SendRequest | None:
        """The command that undoes a completed step; None: there is nothing to undo. Asked for
        the latest step first, once a step has failed or the process is canceled."""
        return None

    def deadline(self, step: Any) -> float | None:
        """Seconds after which a step has failed, and its command is canceled."""
        return None

    def on_signal(self, state: S, name: str, data: Any) -> S:
        """The state after a signal."""
        raise PermanentCommandError(
            "UNEXPECTED_SIGNAL", f"{type(self).__name__} takes no signals, and got {name!r}"
        )

    def upgrade(self, data: dict[str, Any], version: int) -> dict[str, Any]:
        """Today's form of a state that was written by an older `version`."""
        raise PermanentCommandError(
            "STATE_TOO_OLD",
            f"the state is of version {version}, and {type(self).__name__} of version "
            f"{self.version} has no method upgrade",
        )

    def handlers(self, managers: Mapping[str, Any]) -> list[Handler]:
        """Of all managers of its domain, by the types of their processes."""
        return ProcessHandlers(self.domain, managers).all

    def check(self) -> None:
        """Raises a ValueError if it cannot be registered."""
        name = type(self).__name__
        for attribute in ("domain", "type"):
            if not hasattr(self, attribute):
                raise ValueError(f"{name} has no {attribute}: give its class {attribute} = '...'")
            check_name(f"{attribute} of {name}", getattr(self, attribute))
        check_whole(f"version of {name}", self.version, 1)
        steps = getattr(self, "Step", None)
        if not (isinstance(steps, type) and issubclass(steps, StrEnum)):
            raise ValueError(f"{name} has no steps: give it a class Step(StrEnum)")

    @classmethod
    def state_type(cls) -> _Class | None:
        """The dataclass of its states; None: they are dicts."""
        for base in cls.__mro__:
            for generic in vars(base).get("__orig_bases__", ()):
                if get_origin(generic) is ProcessManager:
                    found = get_args(generic)[0]
                    return found if is_dataclass(found) and isinstance(found, type) else None
        return None

    def load(self, data: Any, version: int) -> S:
        """The state from its stored form."""
        if version > self.version:
            raise TransientCommandError(
                "STATE_TOO_NEW",
                f"the state is of version {version}, and {type(self).__name__} here of version "
                f"{self.version}: newer workers must run it",
            )
        if version < self.version:
            data = self.upgrade(data, version)
        kind: _Class = self.state_type() or dict
        try:
            loaded: S = kind(**data)
            return loaded
        except TypeError as error:
            raise PermanentCommandError(
                "STATE_NOT_READABLE",
                f"the state {shown(data)} does not fit {kind.__name__} ({error}): raise version, "
                f"and write upgrade",
            ) from None

    def step_of(self, step: Any, method: str) -> StrEnum:
        """`step`, if it is one; a stored step may be one of an older build."""
        try:
            return self.Step(step)
        except ValueError:
            raise PermanentCommandError(
                "NOT_A_STEP",
                f"{method} of {type(self).__name__} gave {shown(step)}, which is no step of "
                f"{type(self).__name__}: {', '.join(self.Step)}",
            ) from None
