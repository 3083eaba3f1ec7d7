"""The way of one command through a worker process, from its claim to its settlement, and what the
process shows of that. Start reading at pipeline.py.

Imported by what starts, watches and stops the threads.
"""
