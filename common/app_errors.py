"""Errors of an application's own code while its handlers are loaded."""

import importlib
import traceback

from cmdbus.errors import AppError


def app_error(what: str, error: BaseException, called_from: str) -> AppError:
    """With the traceback, from the application's code on: without the file that has called it, and
    without the import system."""
    trace = traceback.TracebackException.from_exception(error)
    importing = ("<frozen importlib", str(importlib.__file__), called_from)
    frames = [frame for frame in trace.stack if not frame.filename.startswith(importing)]
    trace.stack = traceback.StackSummary.from_list(frames)
    return AppError(f"{what} failed:\n{''.join(trace.format()).rstrip()}")
