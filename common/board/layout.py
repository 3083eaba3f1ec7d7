"""The layout of the board: the position of each record and cell, and its only writer.

The board is cells of 8 bytes in native order. `|` begins a cache line (64 bytes). Times are
CLOCK_MONOTONIC in integer nanoseconds, 0 is none.

cells of the head               written by                          read by
| magic, version, seats, slots, the maker of the board, before      open
  command types, size, boot id    it has its name
| name                          the same                            ps
| SUPERVISOR pid state since    the supervisor                      ps, steward
    due wanted
| listening, armed, suspects,   the steward                         leaders, housekeeping,
    renewed, domain pauses,                                           supervisor, ps
    changes of breakers
| restarts, one for each reason the supervisor                      metrics
  undead                        the supervisor                      metrics, ps
| tags, priorities, age share   the maker of the board              ps

cells of a seat
| SEATING role number           the supervisor                      steward, ps
    generation
  stop by, stop verdict         the supervisor                      its process's main thread
  resident memory in bytes      the supervisor                      metrics, ps
  given to a worker             the supervisor                      probes
| PROCESS pid generation        its process's main thread           supervisor, steward, ps
    since ready due
    levels of health
| EXIT generation pid signal    the supervisor                      steward
    code verdict slot token
    command id, quarantined,
    orphaned
| parked                        the leader                          steward, ps
  overflowed                    threads that claim, under a lock    steward
  rescued                       the steward                         supervisor
  incarnation                   its process's main thread           steward
  terminated                    its process's main thread           supervisor
  threads, of which range, why  the same, and set_concurrency       ps, metrics, successor
| claims, each state id token   the thread that has the command     steward
    command id                    at that moment; see ClaimTable
    lost                          the steward; housekeeping while   its process
                                    no steward renews
| COMMAND TYPES, each domain    its process, under a lock;          metrics
    and type                      never changed
and its slots

cells of a slot
| SLOT sequence phase since     its thread                          main thread, supervisor,
    due, thread, session, the                                         steward, ps
    command's claim and attempt
| domain and type of it         its thread                          the same
| stuck sequence                its process's main thread           the same
  ident, by which Python's      its thread                          steward
    own stacks name it
| counters                      its thread; of a dead seat's first  metrics
                                  slot the steward
| a row for each command type,  its thread                          metrics
    and one for all others:
    outcomes, two histograms

A name in CAPITALS is a sealed record (records.py), or a table of them: its first cell is the
CRC of the others. The cells of a record are valid only together, and no single store writes
them. If a reader finds the seal wrong, a process is writing the record, or was killed while it
wrote, or overwrote the memory. The reader tries again a few times, and then shows the record as
unknown.
Unlike a count that is odd during a write, this also holds on a processor that shows stores in
another order than they were made in (ARM), and against garbage. Every other cell is valid by
itself and written by one 8-byte store through `memoryview.cast("q")` (`struct.pack_into` writes
byte by byte: readers in another process saw halves).

The supervisor clears a dead writer's cells when it gives the seat to another process; only the
counters and names stay, and the next process continues them. Two living processes never share a
seat: a replacement that starts first takes a spare one.
"""

from struct import Struct

from cmdbus.rollups import BUCKETS as BUCKETS

MAGIC = int.from_bytes(b"cmdbus\0b", "little")
#: Raise it with each change of a position, a record or a number that is written.
VERSION = 14

LINE = 8  # cells
CELL = 8  # bytes

#: Bytes of the name of a domain or type, which has at most 100, and of its padding.
NAME = 104

# The head.
HEAD = Struct("=6q16s")  # magic, version, seats, slots, command types, size, boot id
BOARD_NAME = 1 * LINE
SUPERVISOR_AT = 3 * LINE
LISTENING = 4 * LINE
ARMED = LISTENING + 1
SUSPECTS = LISTENING + 2
RENEWED = LISTENING + 3
DOMAIN_PAUSES = LISTENING + 4
BREAKER_CHANGES = LISTENING + 5
RESTARTS = 5 * LINE
UNDEAD = RESTARTS + 7
SELECTED = 6 * LINE
HEAD_CELLS = SELECTED + 16 * LINE

# A seat, from its beginning.
SEATING_AT = 0
STOP_BY = 4
STOP_VERDICT = 5
RSS = 6
FOR_WORKER = 7
PROCESS_AT = 1 * LINE
EXIT_AT = 3 * LINE
PARKED = 5 * LINE
OVERFLOWED = PARKED + 1
RESCUED = PARKED + 2
INCARNATION = PARKED + 3
TERMINATED = PARKED + 4
THREADS = PARKED + 5
CLAIMS = 6 * LINE
CLAIM_COUNT = 512
CLAIM_CELLS = 6
#: In a claim: the cell that marks it as lost.
CLAIM_LOST = 5
#: Claims without an index are written to the line between the claims and these; it is never read.
COMMAND_TYPES = CLAIMS + CLAIM_COUNT * CLAIM_CELLS + LINE
COMMAND_TYPE_CELLS = 4 * LINE

# A slot, from its beginning.
SLOT_AT = 0
NAMES_AT = 2 * LINE
STUCK_SEQUENCE = 6 * LINE
IDENT = STUCK_SEQUENCE + 1
COUNTERS = 7 * LINE
ROWS = 9 * LINE

# The row of a command type: its outcomes, then two histograms, each 16 buckets and the sum.
DEQUEUE_LATENCY = LINE
HANDLER_DURATION = DEQUEUE_LATENCY + len(BUCKETS) + 2
ROW_CELLS = 6 * LINE

assert HANDLER_DURATION + len(BUCKETS) + 2 <= ROW_CELLS


class Layout:
    """The positions on a board of this size, in cells."""

    def __init__(self, seats: int, slots: int, command_types: int) -> None:
        self.seats, self.slots, self.command_types = seats, slots, command_types
        self.slot_cells = ROWS + (command_types + 1) * ROW_CELLS
        #: The first slot, from the seat's beginning.
        self.slots_at = COMMAND_TYPES + command_types * COMMAND_TYPE_CELLS
        self.seat_cells = self.slots_at + slots * self.slot_cells
        #: Bytes.
        self.size = (HEAD_CELLS + seats * self.seat_cells) * CELL

    def seat(self, seat: int) -> int:
        assert 0 <= seat < self.seats, seat
        return HEAD_CELLS + seat * self.seat_cells

    def slot(self, seat: int, slot: int) -> int:
        assert 0 <= slot < self.slots, slot
        return self.seat(seat) + self.slots_at + slot * self.slot_cells
