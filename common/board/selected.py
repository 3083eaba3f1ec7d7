"""What the workers of a supervisor claim, as the board shows it: tags, priorities, age share."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from cmdbus.selection import ALL_PRIORITIES, range_of

#: Bytes of its text on the board; tags that do not fit are not shown.
SIZE = 1024


@dataclass(frozen=True, slots=True)
class Selected:
    tags: Sequence[str] = ()
    #: The first and the last one.
    priorities: Sequence[int] = ALL_PRIORITIES
    #: In percent.
    age_share: int = 0

    def __str__(self) -> str:
        """Empty without any."""
        texts = [f"tags {', '.join(self.tags)}"] if self.tags else []
        if tuple(self.priorities) != ALL_PRIORITIES:
            texts.append(f"priorities {range_of(self.priorities)}")
        if self.age_share:
            texts.append(f"age share {self.age_share} %")
        return "; ".join(texts)

    def encode(self) -> bytes:
        tags = list(self.tags)
        while True:
            shown = Selected(tags, tuple(self.priorities), self.age_share)
            text = json.dumps(asdict(shown)).encode()
            if len(text) <= SIZE:
                return text.ljust(SIZE, b"\0")
            tags.pop()

    @classmethod
    def decode(cls, raw: bytes) -> "Selected":
        """What it does not understand is as if there was none."""
        with suppress(ValueError, TypeError):
            return cls(**json.loads(raw.rstrip(b"\0")))
        return EVERYTHING


EVERYTHING = Selected()
