"""The programs on top of the bus; loads no database driver."""

if __name__ != "cmdbus.supervisor":
    raise ImportError(f"this directory is cmdbus.supervisor, not {__name__}: pip install -e .")
