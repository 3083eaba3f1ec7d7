"""The metrics of `/metrics` for a registry of prometheus_client: `Collector`.

For programs that only send, and for a `Worker` of one's own; a fleet answers `/metrics` itself.
"""

if __name__ != "cmdbus.prometheus":
    raise ImportError(f"this directory is cmdbus.prometheus, not {__name__}: pip install -e .")

try:
    import prometheus_client as prometheus_client
except ImportError:
    raise ImportError(
        "cmdbus.prometheus needs the extra prometheus: pip install 'cmdbus[prometheus]'"
    ) from None

from cmdbus.prometheus.collector import Collector as Collector

__all__ = ["Collector"]
