INSERT INTO demo_transfer (command_id, amount) VALUES (%(command_id)s, %(amount)s);
