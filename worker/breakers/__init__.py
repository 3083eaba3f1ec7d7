"""Circuit breakers in a worker process: what it knows of their states, how the calls of its
handlers have ended, and the probes that it may make.

Imported by the execution and the pipeline. Touches the board and sessions that it is given.
"""
