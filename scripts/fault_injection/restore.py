"""A server that is restored to an earlier point, as a base backup or an asynchronous failover
leaves it: what was committed since is gone, and ids and tokens are given again."""

import shutil
import subprocess
import time

from fault_injection.history import Restore
from fault_injection.kinds import Fault, Hurts, Kind, Needs
from fault_injection.rig import Rig

_COPIES_WITHIN_S = 60.0


@Kind(
    "restore",
    "PostgreSQL is restored to some seconds ago",
    lasts=(2.0, 8.0),
    slow_by=30,
    hurts=Hurts.ALL,
    needs=Needs.OWN_SERVER,
    apart=True,
)
def restore(rig: Rig, fault: Fault) -> None:
    server = rig.server
    assert server is not None
    data = server.directory / "data"
    copy, gone = data.with_name("data.copy"), data.with_name("data.gone")

    def put_back() -> None:
        """Whatever was done of it, a server runs in the end."""
        if copy.exists() and not data.exists():
            copy.rename(data)
        server.start()

    with rig.server_lock:
        for directory in (copy, gone):  # of a run that was killed
            shutil.rmtree(directory, ignore_errors=True)
        copied_at = time.time()
        with rig.undoing(lambda: server.stop("fast"), server.start):
            command = ["cp", "-a", str(data), str(copy)]
            subprocess.run(command, check=True, timeout=_COPIES_WITHIN_S)
        time.sleep(fault.lasts)
        with rig.undoing(lambda: server.stop("immediate"), put_back):
            data.rename(gone)
        rig.restores.append(Restore(copied_at=copied_at, restored_at=time.time()))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(gone, ignore_errors=True)
