"""The insert as a task, for cmdbus and for django-tasks-db."""

from benches.orm.models import Effect
from benches.orm.settings import PEER, QUEUE

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task(queue_name=QUEUE)
def insert(number: int) -> None:
    Effect.objects.create(number=number)


def enqueue_for_peer(count: int) -> None:
    for number in range(count):
        insert.using(backend=PEER).enqueue(number)
