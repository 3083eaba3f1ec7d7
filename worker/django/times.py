"""Times of the database, and of tasks, as Django has them."""

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone


def local(time: datetime | None) -> datetime | None:
    """As `timezone.now()` is: in UTC or, in a project without time zones, naive and in the default
    one."""
    if time is None:
        return None
    if settings.USE_TZ:
        return time.astimezone(UTC)
    naive: datetime = timezone.make_naive(time, timezone.get_default_timezone())
    return naive


def aware(time: Any) -> Any:
    """A naive time is one of the default time zone; anything but a time stays what it is."""
    if not isinstance(time, datetime) or timezone.is_aware(time):
        return time
    return timezone.make_aware(time, timezone.get_default_timezone())
