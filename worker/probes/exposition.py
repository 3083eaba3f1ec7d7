"""The page of metrics, in Prometheus' text format 0.0.4. Pure.

Every family is on every page.
"""

from collections.abc import Iterable

from cmdbus.board.counters import CountersView
from cmdbus.board.views import BoardView
from cmdbus.worker.probes.families import FAMILIES, Family, Sample
from cmdbus.worker.probes.responses import Gauges
from cmdbus.worker.probes.samples import samples_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(view: BoardView, counters: CountersView, gauges: Gauges) -> str:
    samples = samples_of(view, counters, gauges)
    return "".join(_family(family, samples[family.name]) for family in FAMILIES)


def _family(family: Family, samples: Iterable[Sample]) -> str:
    head = f"# HELP {family.name} {family.description}\n# TYPE {family.name} {family.type}\n"
    return head + "".join(_line(family.name, sample) for sample in samples)


def _line(name: str, sample: Sample) -> str:
    suffix, labels, value = sample
    quoted = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
    braced = f"{{{quoted}}}" if labels else ""
    return f"{name}{suffix}{braced} {value}\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
