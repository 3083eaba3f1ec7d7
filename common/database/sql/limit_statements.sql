-- Until the end of the transaction.
SELECT set_config('statement_timeout', %(limit)s, true);
