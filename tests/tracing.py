"""Which tests cannot run while a tracer follows the calls of this process: coverage, a debugger."""

import sys

import pytest

#: An asynchronous exception may end in the tracer instead of the thread. CPython 3.11 is worse: as
#: long as one waits for a thread that sleeps, any traced call repeats its first instruction, and
#: no thread is left to wake that one. With sys.monitoring there is no tracer.
ends_other_threads = pytest.mark.skipif(
    sys.gettrace() is not None,
    reason="a tracer keeps asynchronous exceptions from the threads that they are meant for",
)
