"""What `INSTALLED_APPS = ["cmdbus.django"]` names."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate


class CmdbusConfig(AppConfig):
    """Its label is `cmdbus`: that of the name's last part would be `django`."""

    name = "cmdbus.django"
    label = "cmdbus"
    verbose_name = "cmdbus"

    def ready(self) -> None:
        from cmdbus.django.checks import register_checks
        from cmdbus.django.installing import clear_schemas, install_schemas

        register_checks()
        pre_migrate.connect(install_schemas, sender=self)
        post_migrate.connect(clear_schemas, sender=self)
