"""What a user would install instead of cmdbus, run for the same work."""
