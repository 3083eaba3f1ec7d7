"""What `manage.py` finds of cmdbus."""
