-- Who has this number in this database; numbers of other databases are the same.
SELECT (SELECT worker FROM {schema}.incarnation WHERE id = %(incarnation)s);
