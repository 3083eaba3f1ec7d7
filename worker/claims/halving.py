"""Statements for many rows of which one may be rejected, or that may take too long: they are
executed again for each half, so that one row stops no others. Not after a lock timeout or a
deadlock, as the halves would wait again."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cmdbus.worker.claims.rejections import may_be_of_one_row

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_halves(
    work: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    rejected: Callable[[Item, Exception], object],
) -> list[Result]:
    """All that `work` returns; `rejected` is called for each item with which it fails alone."""
    if not items:
        return []
    try:
        return work(items)
    except Exception as error:
        if not may_be_of_one_row(error):
            raise
        if len(items) == 1:
            rejected(items[0], error)
            return []
    half = len(items) // 2
    return in_halves(work, items[:half], rejected) + in_halves(work, items[half:], rejected)
