SELECT {schema}.configure_domain(%(domain)s, %(given)s, %(accepting)s, %(max_depth)s,
    %(warn_depth)s, %(keep)s, %(operator)s, %(reason)s);
