"""What operators see of the nodes after a run."""

from cmdbus import CommandBus
from fault_injection.rig import Rig, within

#: Seconds until each node has published its state, while an operator watches.
_SHOWN_WITHIN_S = 10.0


def check_nodes(rig: Rig) -> None:
    """Each must show itself again, with all its workers."""
    left: set[str] = set()

    def all_are_shown() -> bool:
        living = [node for node in bus.fleet() if not node.gone]
        workers = {node.name: sum(seat.pid is not None for seat in node.seats) for node in living}
        left.clear()
        left.update(
            i.name for i in rig.instances if workers.get(i.name, 0) < rig.plan.options.procs
        )
        return not left

    with CommandBus(rig.dsn) as bus:
        if within(_SHOWN_WITHIN_S, all_are_shown) is None:
            rig.wrong.append(f"nodes that are not shown as they are: {', '.join(sorted(left))}")
