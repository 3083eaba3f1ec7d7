"""An app of Django, whose task inserts a row by the ORM, and what it is compared with."""
