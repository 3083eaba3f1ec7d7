-- In one round trip. READ COMMITTED whatever the role's default is: a renewal of the
-- lease would make any other level fail at settlement. The marker shows at the end
-- whether this is still the same transaction.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = {statement_ms};
SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
SET LOCAL cmdbus.transaction = '{marker}';
