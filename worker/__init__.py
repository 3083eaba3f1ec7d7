"""What runs inside the children: the command workers."""

if __name__ != "cmdbus.worker":
    raise ImportError(f"this directory is cmdbus.worker, not {__name__}: pip install -e .")
