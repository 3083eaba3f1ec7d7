"""A shop and its blog: a project of Django whose tasks cmdbus runs.

CMDBUS_DSN is like postgresql://shop@localhost/shop. To run it, in the directory above:

    python -m django_project.manage migrate
    python -m django_project.manage runserver
    python -m django_project.manage cmdbus
"""
