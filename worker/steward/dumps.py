"""What faulthandler wrote of a process: the stacks of all its threads. Pure."""

import re

_HEAD = re.compile(r"^(?:Thread|(Current) thread) 0x([0-9a-f]+) ", re.MULTILINE)
#: What may follow the stacks of a dump, or precede those of the next one.
_END = re.compile(r"\n\n|\nFatal Python error")


def stack_of(dump: str, ident: int | None) -> str:
    """The latest stack of this thread, or of the one that crashed; all if there is none."""
    found = dump
    heads = list(_HEAD.finditer(dump))
    starts = [*(head.start() for head in heads), len(dump)]
    for head, end in zip(heads, starts[1:], strict=True):
        if head[1] if ident is None else int(head[2], 16) == ident:
            found = _END.split(dump[head.start() : end])[0].strip()
    return found
