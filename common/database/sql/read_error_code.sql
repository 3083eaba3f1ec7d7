-- Of the latest execution of a claimed command.
SELECT error_code FROM {schema}.ready
WHERE domain = %(domain)s AND priority = %(priority)s AND id = %(id)s;
