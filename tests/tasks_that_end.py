"""Tasks that end in every way. Their module is named in the option `modules` of the settings, as it
belongs to no app."""

import dataclasses
import threading
from typing import Any

from django.db import connection, transaction
from django.utils import timezone, translation
from django_project.blog.models import Article
from django_project.decorator import task

from cmdbus import BusinessRuleError

#: What tasks have seen, and what was called after a commit.
seen: list[Any] = []
may_go_on = threading.Event()


def backend_pid() -> int:
    """Of the session of Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


@task
def write(title: str, text: str = "") -> dict[str, Any]:
    article = Article.objects.create(title=title, text=text)
    return {"title": article.title, "pair": (1, 2)}


@task
def write_and_fail(title: str, error: str) -> None:
    Article.objects.create(title=title)
    transaction.on_commit(lambda: seen.append(f"committed {title}"))
    raise _ERRORS[error]


@task
def write_and_return(title: str, what: str) -> Any:
    Article.objects.create(title=title)
    return _RETURNED[what]


@task
def write_and_call_back(title: str) -> None:
    Article.objects.create(title=title)

    def committed() -> None:
        seen.append((title, Article.objects.filter(title=title).count(), backend_pid()))

    transaction.on_commit(committed)
    seen.append(backend_pid())


@task
async def write_async(title: str) -> str:
    article = await Article.objects.acreate(title=title)
    found = await Article.objects.aget(pk=article.pk)
    return str(found.title)


@task
async def write_async_and_fail(title: str, error: str) -> None:
    await Article.objects.acreate(title=title)
    raise _ERRORS[error]


@task
def write_and_enqueue(title: str, fails: bool) -> None:
    write.enqueue(f"{title}, enqueued")
    if fails:
        raise LookupError("after it has enqueued")


@task(takes_context=True)
def fail_twice(context: Any, title: str) -> int:
    """Succeeds at the third attempt."""
    result = context.task_result
    seen.append((context.attempt, len(result.errors), result.status))
    Article.objects.create(title=f"{title} {context.attempt}")
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return int(context.attempt)


@task(takes_context=True, priority=30)
def compare_results(context: Any) -> dict[str, list[str]]:
    """Fields whose values the task and the database know differently."""
    known = context.task_result
    read = known.task.get_backend().get_result(known.id)
    names = [each.name for each in dataclasses.fields(known)]
    return {
        name: [repr(getattr(known, name)), repr(getattr(read, name))]
        for name in names
        if getattr(known, name) != getattr(read, name)
    }


@task
def write_and_hang(title: str) -> None:
    Article.objects.create(title=title)
    assert may_go_on.wait(20)


@task
def change_the_thread() -> None:
    """Leaves the language, the time zone and the session's settings changed."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")


@task
def read_the_thread() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW TIME ZONE")
        zone = cursor.fetchone()[0]
    return [translation.get_language() or "", timezone.get_current_timezone_name(), zone]


_ERRORS: dict[str, BaseException] = {
    "LookupError": LookupError("not found"),
    "BusinessRuleError": BusinessRuleError("DECLINED", "the card is declined"),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
}
_RETURNED: dict[str, Any] = {
    "a set": {1, 2},
    "a time": timezone.now(),
    "NaN": float("nan"),
    "NUL": "a\0b",
    "a key": {1: "one"},
}
