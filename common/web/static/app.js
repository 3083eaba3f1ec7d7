// Owned by the front end.
