"""What `INSTALLED_APPS = ["cmdbus.django"]` names."""

from django.apps import AppConfig


class CmdbusConfig(AppConfig):
    """Its label is `cmdbus`: that of the name's last part would be `django`."""

    name = "cmdbus.django"
    label = "cmdbus"
    verbose_name = "cmdbus"
