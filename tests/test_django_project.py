"""cmdbus as an app of a Django project: what INSTALLED_APPS names."""

import subprocess
import sys

import pytest


def test_the_app_has_a_label_that_is_no_other_apps() -> None:
    """The last part of its name, which is Django's default, would be `django`."""
    from django.apps import AppConfig

    assert AppConfig.create("cmdbus.django").label == "cmdbus"


@pytest.mark.parametrize("name", ["cmdbus", "cmdbus.django", "cmdbus.worker", "cmdbus.supervisor"])
def test_no_package_imports_django_by_itself(name: str) -> None:
    loaded = f"import sys, {name}; print([m for m in sys.modules if m.startswith('django')])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, timeout=20
    )
    assert done.stdout.strip() == "[]", done.stderr
