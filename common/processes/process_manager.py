"""What an application writes: the steps of a process, and what they change in its state."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar, get_args, get_origin

from cmdbus.errors import PermanentCommandError
from cmdbus.handlers import Handler
from cmdbus.payloads.forms import Encoder
from cmdbus.processes.handlers import ProcessHandlers
from cmdbus.processes.managers import check_manager, check_states
from cmdbus.processes.states import state_type_of
from cmdbus.producer.requests import SendRequest
from cmdbus.reply import Reply

S = TypeVar("S")
# Inside the class, `type` is the type of its processes.
_Steps = type[StrEnum]
_StateType = Any


class ProcessManager(Generic[S]):
    """Subclass it as `class Transfer(ProcessManager[TransferState])`, with a dataclass, a TypedDict
    or a model of pydantic for the state, and register an instance with `registry.register_process`.
    Its methods are called by workers, in the transaction that moves a process on: they decide, and
    have no effects of their own. A state is read again as a payload of its type is.
    """

    #: The domain of its processes: replies to their commands come there.
    domain: str
    type: str
    Step: _Steps
    #: That of the state's format: the states of older ones pass `upgrade`. What starts processes
    #: names it, too.
    version: int = 1
    #: What is in the brackets of its base, if that is a model; else dict.
    state_type: _StateType = dict

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, ProcessManager):
                cls.state_type = state_type_of(get_args(base)[0])

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

    def check_manager(self) -> None:
        """Raises a ValueError if it cannot be registered."""
        check_manager(self)

    def check_states(self) -> None:
        """Raises a ValueError if its states cannot be read, now that the program is complete."""
        check_states(self)

    def process_handlers(
        self, managers: "Mapping[str, ProcessManager[Any]]", encoder: Encoder | None
    ) -> list[Handler]:
        """Of all managers of its domain, by the types of their processes. `encoder`: of the states
        and commands."""
        return ProcessHandlers(self.domain, managers, encoder).all
