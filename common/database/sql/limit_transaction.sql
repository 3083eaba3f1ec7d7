-- New limits of a handler's transaction, the one that cmdbus.transaction marks.
SELECT pg_catalog.set_config('statement_timeout', '{statement_ms}', true),
    pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_ms}', true);
