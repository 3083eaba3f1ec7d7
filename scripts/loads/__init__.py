"""The parts of scripts/loadtest: what is sent, the instances that run it, and the
verdict on the result."""
