"""The scenarios of scripts/bench, a module for each group of them."""
