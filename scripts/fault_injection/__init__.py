"""The parts of scripts/chaos: a schedule of faults, those who cause them, and a checker."""
