"""Django's decorator `task`. A project that is to run with one Django only has one of the lines."""

try:
    from django.tasks import task as task
except ImportError:
    from django_tasks import task as task
