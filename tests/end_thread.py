"""For an application under test: ends a thread of its process from within, as a defect would."""

import ctypes
import os
import threading
import time
from pathlib import Path


def end_threads(order: str) -> None:
    """Watches a file of which `pid name` is to be read: that process's thread of that name gets
    a SystemExit as soon as it executes Python."""

    def watch() -> None:
        done = ""
        while True:
            time.sleep(0.02)
            text = Path(order).read_text() if Path(order).exists() else ""
            if text != done and text.startswith(f"{os.getpid()} "):
                done = text
                for thread in threading.enumerate():
                    if thread.name == text.split()[1]:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
                        )

    threading.Thread(target=watch, daemon=True).start()
