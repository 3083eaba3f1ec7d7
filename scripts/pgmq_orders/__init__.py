"""An example: a program that knows only PGMQ, and a fleet that serves it through two bridges."""
