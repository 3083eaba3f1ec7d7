"""The parts of scripts/chaos: a schedule of faults, the functions that cause them, and
the checks of the history."""
