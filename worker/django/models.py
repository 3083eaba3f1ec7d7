"""None: the tables of cmdbus are not Django's. Django sends `pre_migrate`, which installs them,
only to apps that have such a module."""
