"""The demo: an application with a handler of every kind, and the program that runs it.

Imported by nothing; its supervisor loads `cmdbus.worker.demo:registry` by name. The program may
import every room: it is the parent of an ordinary supervisor, and a producer.
"""

from cmdbus.worker.demo.handlers import registry

__all__ = ["registry"]
