"""The parts of scripts/loadtest: what is sent, who runs it, and what became of it."""
