"""A WSGI server for few users and any clients: slow and hostile ones hold up no other.

One thread reads all requests and writes all responses without blocking; threads run only the
application, and streams of events. wsgiref's server has no deadlines, no bounds and one thread.
"""
