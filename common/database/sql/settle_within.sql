-- Settles a command inside its handler's transaction. NULL: that transaction has ended, or has
-- another isolation level. And which statements SQL has prepared in this session, which outlive
-- the transaction.
SELECT CASE
    WHEN current_setting('cmdbus.transaction', true) = %(marker)s
        AND current_setting('transaction_isolation') = 'read committed'
    THEN {schema}.settle(
        %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[],
        %(tokens)s::bigint[], %(command_ids)s::uuid[], %(claimer)s,
        %(kinds)s::text[], %(attempts)s::smallint[], %(losses)s::smallint[],
        %(max_attempts)s::smallint[], %(results)s::json[],
        %(delays)s::double precision[], %(codes)s::text[], %(messages)s::text[],
        %(details)s::json[])
    END,
    (SELECT array_agg(quote_ident(name)) FROM pg_prepared_statements WHERE from_sql);
