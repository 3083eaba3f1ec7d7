"""Where everything on the board is, and who may write it: the one module that knows.

The board is cells of 8 bytes in native order. `|` begins a cache line (64 bytes). Times are
CLOCK_MONOTONIC in integer nanoseconds, 0 is none.

cells of the head               written by                          read by
| magic, version, seats,        who makes the board, before         open
  slots, kinds, size, boot id     it has its name
| name                          the same                            ps
| SUPERVISOR pid state since    the supervisor                      ps, steward
    due wanted
| listening, armed, suspects,   the steward                         leaders, relief,
    renewed                                                           supervisor, ps
| restarts, one for each reason the supervisor                      metrics
  undead                        the supervisor                      metrics, ps

cells of a seat
| SEATING role number           the supervisor                      steward, ps
    generation since
  leave by, verdict             the supervisor                      its process's main thread
  resident memory in bytes      the supervisor                      metrics, ps
| PROCESS pid generation        its process's main thread           supervisor, steward, ps
    incarnation since ready due
    levels of health
| ENDED generation pid signal   the supervisor                      steward
    code verdict slot token alone
| parked                        the thread that has the lead        steward, ps
  overflowed                    a thread that claims; only ever 1   who hands back
  rescued                       the steward                         supervisor
| keys, each state id token     the thread that holds the command   who hands back, renewal
    packed, command id            at that moment; see Keys
| KINDS, each domain and type   its process, under a lock;          metrics, who reads keys
                                  never changed
and its slots

cells of a slot
| SLOT sequence phase since     its thread                          main thread, supervisor,
    due, the command's key, id,                                       steward, ps
    attempt, thread, session
| domain and type of it         its thread                          the same
| verdict                       its process's main thread           the same
  ident, by which Python's      its thread                          steward
    own stacks name it
| counters                      its thread; of a dead seat's first  metrics
                                  slot the steward
| a row for each kind, and one  its thread                          metrics
    for all others: ends, and
    two histograms

What is written in CAPITALS is a sealed record, or a table of them: its first cell is the
CRC of the others. The cells of a record are true only together, and they cannot be written
at once; a reader that finds the seal wrong has read while somebody wrote, or somebody was
killed while writing, or something else wrote there. It looks again a few times, and then
says that it does not know.
Unlike a count that is odd while somebody writes, this holds also where a processor shows
stores in another order than they were made in (ARM), and against garbage. Every other cell
is true by itself and written by one 8-byte store through `memoryview.cast("q")`
(`struct.pack_into` writes byte by byte: readers in another process saw halves).

A dead writer's cells are cleared by the supervisor when it gives the seat to another
process; only its counters and names stay, and the next one continues them. Two processes
that live never share a seat: a replacement that starts first takes a spare one.
"""

from dataclasses import dataclass
from struct import Struct

MAGIC = int.from_bytes(b"cmdbus\0b", "little")
VERSION = 5

LINE = 8  # cells
CELL = 8  # bytes

#: Bytes of a domain's or a type's name; the longest has 100.
NAME = 104

# The head.
HEAD = Struct("=6q16s")  # magic, version, seats, slots, kinds, size, boot id
BOARD_NAME = 1 * LINE
SUPERVISOR_AT = 3 * LINE
LISTENING = 4 * LINE
ARMED = LISTENING + 1
SUSPECTS = LISTENING + 2
RENEWED = LISTENING + 3
PAUSES = LISTENING + 4
RESTARTS = 5 * LINE
UNDEAD = RESTARTS + 7
HEAD_CELLS = 6 * LINE

# A seat, from its beginning.
SEATING_AT = 0
STOP_BY = 5
STOP_VERDICT = 6
RSS = 7
PROCESS_AT = 1 * LINE
EXIT_AT = 3 * LINE
PARKED = 5 * LINE
OVERFLOWED = PARKED + 1
RESCUED = PARKED + 2
CLAIMS = 6 * LINE
CLAIM_COUNT = 512
CLAIM_CELLS = 5
#: One more key than there are: where those go that find no place. Nobody reads it.
COMMAND_TYPES = CLAIMS + CLAIM_COUNT * CLAIM_CELLS + LINE
COMMAND_TYPE_CELLS = 4 * LINE

# A slot, from its beginning.
SLOT_AT = 0
NAMES_AT = 2 * LINE
VERDICT = 6 * LINE
IDENT = VERDICT + 1
COUNTERS = 7 * LINE
ROWS = 9 * LINE

# A row of a kind: its ends, then the two histograms, each 16 buckets and the sum.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
DEQUEUE_LATENCY = LINE
HANDLER_DURATION = DEQUEUE_LATENCY + len(BUCKETS) + 2
ROW_CELLS = 6 * LINE

assert HANDLER_DURATION + len(BUCKETS) + 2 <= ROW_CELLS


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are on a board of this size, in cells."""

    seats: int
    slots: int
    command_types: int

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seats", 1, 1024),
            ("slots", 1, 4096),
            ("command_types", 1, 4096),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be {least} to {most}, not {getattr(self, name)}")

    @property
    def slot_cells(self) -> int:
        return ROWS + (self.command_types + 1) * ROW_CELLS

    @property
    def slots_at(self) -> int:
        """From the seat's beginning."""
        return COMMAND_TYPES + self.command_types * COMMAND_TYPE_CELLS

    @property
    def seat_cells(self) -> int:
        return self.slots_at + self.slots * self.slot_cells

    @property
    def size(self) -> int:
        """Bytes."""
        return (HEAD_CELLS + self.seats * self.seat_cells) * CELL

    def seat(self, seat: int) -> int:
        if not 0 <= seat < self.seats:
            raise ValueError(f"the board has seats 0 to {self.seats - 1}, not {seat}")
        return HEAD_CELLS + seat * self.seat_cells

    def slot(self, seat: int, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise ValueError(f"a seat has slots 0 to {self.slots - 1}, not {slot}")
        return self.seat(seat) + self.slots_at + slot * self.slot_cells
