"""No models: the tables of cmdbus are not Django's. But Django sends `pre_migrate`, at which they
are installed, only to apps that have such a module."""
