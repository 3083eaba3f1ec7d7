"""The rows of the bench: what is measured, below which ratio it fails, and what is aimed at.

More is better in all of them. A limit is what is due, or else what was measured: then the reason
follows it, and what is due.
"""

from benches.adapting import adaptive_cpu, adaptive_io, adaptive_mixed
from benches.bridging import bridge, bridge_drain, bridge_latency, bridge_out, bridge_out_latency
from benches.comparison import Row
from benches.draining import batch, bloat, bloat_batch, drain, drain_full, threads, tx
from benches.growing import domains, instances, lease_look
from benches.guarding import breaker_idle
from benches.limiting import fair, keyed, limited_idle, limited_latency, ordered
from benches.managing import process
from benches.orm.comparing import django
from benches.paging import page
from benches.peers.comparing import MEASURES as PEER_MEASURES
from benches.peers.comparing import PEERS, peers
from benches.selecting import tag_idle
from benches.sending import enqueue, enqueue_bulk, enqueue_concurrent
from benches.ticking import tick_latency
from benches.tracing import otel
from benches.waiting import call, idle, io, latency, mixed
from benches.watching import drain_watched

_RATE, _CPU, _MS = "commands/s", "us/command", "ms"

_FULL = "measured: 0.56 to 0.62, and 0.56 to 0.66 in CPU"
_EMPTY = "measured: 0.23 to 0.45: four rows more are written for a step, in 1.25 replies"

ROWS = {
    row.name: row
    for row in (
        Row("drain", drain, _RATE, 0.72, 0.85),
        Row("drain-cpu", drain, _CPU, 0.62, 0.7),
        Row("drain-full", drain_full, _RATE, 0.5, 0.85, _FULL),
        Row("drain-full-cpu", drain_full, _CPU, 0.55, 0.7, _FULL),
        Row("drain-watched", drain_watched, _RATE, 0.9),
        Row("drain-watched-cpu", drain_watched, _CPU, 0.97),
        Row("threads", threads, _RATE, 0.95, 1.0),
        Row("io", io, _RATE, 0.95, 0.99),
        Row("latency", latency, _MS, 0.56, 0.77),
        Row("latency-cpu", latency, _CPU),
        Row("call", call, _RATE, 0.9),
        Row("instances", instances, _RATE, 0.27, 0.8),
        Row("instances-bare", instances, _RATE),
        Row("instances-of-bare", instances, "ratio", 1.0),
        Row("row-waits", instances, "of 1,000", 0.999, 1.0),
        Row("enqueue", enqueue, _RATE, 0.58, 0.75),
        Row("enqueue-cpu", enqueue, _CPU),
        Row("enqueue-bulk", enqueue_bulk, _RATE, 0.62, 0.8),
        Row("enqueue-concurrent", enqueue_concurrent, _RATE, 0.75),
        Row("enqueue-concurrent-armed", enqueue_concurrent, _RATE),
        Row("domains", domains, _CPU, 0.67, 0.9),
        Row("lease-look", lease_look, _MS, 0.67, 0.9),
        Row("page-first", page, _MS, 0.5),
        Row("page-deep", page, _MS, 0.5),
        Row("page-history", page, _MS, 0.5),
        Row("page-overview", page, _MS),
        Row("page-first-byte", page, _MS, 1.0),
        Row("tx", tx, _RATE, 0.6),
        Row("process", process, _RATE, 0.5, 0.9),
        Row("process-cpu", process, _CPU),
        Row("process-empty", process, _RATE, 0.2, 0.5, _EMPTY),
        Row("process-empty-cpu", process, _CPU),
        Row("batch", batch, _RATE, 0.85),
        Row("bloat", bloat, _RATE, 0.6, 0.9),
        Row("bloat-batch", bloat_batch, _RATE, 0.6, 0.9),
        Row("mixed", mixed, _MS, 1.0),
        Row("idle", idle, "statements/s", 10.0),
        Row("keyed", keyed, _RATE, 0.5),
        Row("keyed-cpu", keyed, _CPU),
        Row("ordered", ordered, _RATE, 1.0),
        Row("ordered-of-bare", ordered, _RATE),
        Row("fair", fair, _MS, 0.33),
        Row("limited-latency", limited_latency, _MS, 0.67),
        Row("limited-idle", limited_idle, "statements/s", 10.0),
        Row("limited-claim", limited_idle, _MS, 0.9),
        Row("breaker-idle", breaker_idle, "statements/s", 10.0),
        Row("breaker-claim", breaker_idle, _MS, 0.9),
        Row("adaptive-io", adaptive_io, _RATE, 0.9),
        Row("adaptive-cpu", adaptive_cpu, _RATE, 0.9),
        Row("adaptive-mixed", adaptive_mixed, _RATE, 0.9),
        Row("tick-latency", tick_latency, _MS, 1.0),
        Row("tag-idle", tag_idle, "statements/s", 10.0),
        Row("tag-claim", tag_idle, _MS, 0.9),
        Row("bridge", bridge, "messages/s", 0.5),
        Row("bridge-cpu", bridge, "us/message", 0.5),
        Row("bridge-out", bridge_out, "messages/s"),
        Row("bridge-out-cpu", bridge_out, "us/message"),
        Row("bridge-drain", bridge_drain, "messages/s"),
        Row("bridge-latency", bridge_latency, _MS),
        Row("bridge-latency-polled", bridge_latency, _MS),
        Row("bridge-out-latency", bridge_out_latency, _MS),
        Row("otel", otel, _RATE),
        Row("otel-cpu", otel, _CPU),
        Row("otel-unsampled", otel, _RATE),
        Row("otel-unsampled-cpu", otel, _CPU),
        Row("django", django, _RATE, 0.5),
        Row("django-db-worker", django, _RATE, 4.0),
        *(
            Row(f"{name}-{peer}", peers, _MS if name == "pickup" else _RATE)
            for peer in PEERS
            for name in PEER_MEASURES
        ),
    )
}

#: What can be asked for: a measurement, or a row.
MEASURES = {
    **{row.measure.__name__.replace("_", "-"): row.measure for row in ROWS.values()},
    **{row.name: row.measure for row in ROWS.values()},
}
