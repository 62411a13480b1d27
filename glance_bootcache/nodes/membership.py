"""Which storage nodes work: each tells by its row's beat, and others judge by their own clocks.

No clock of one machine is compared with another's. A node that has not heard of all for a while,
or could not beat itself, judges nobody, and begins anew when it can: whoever beats within 20 s is
up. Of who does not the seconds count before and after, so that a node that is gone for good is out
some day.
"""

import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Iterable

from bootcache.rpc.messages import NodeWish

# Of a beat that stands still, until the node is away: who needs its images takes them over; and
# until all of its images are taken over.
AWAY_SECONDS, OUT_SECONDS = 20.0, 600.0
# Without a look at all beats nobody is judged.
_BLIND_SECONDS = 12.0


class NodeState(enum.StrEnum):
    """How a node is, as another one sees it."""

    UP = 'up'
    AWAY = 'away'
    OUT = 'out'


@dataclasses.dataclass(frozen=True)
class NodeRecord:
    """What a node's row says.

    :ivar number: of the row.
    :ivar name: ``[DEFAULT]host`` there.
    :ivar beat: counts up while it works.
    :ivar is_restored: it removes no file, as the database is another one than it knew.
    :ivar wish: what an operator wants of it; None if nothing.
    :ivar rpc: version of the messages that it speaks; empty while not known.
    :ivar look_rules: version of its rules by which bases are looked at; 0 while not known.
    :ivar free_bytes: room in its state directory, beyond a quarter of the disk.
    """

    number: int
    name: str
    beat: int
    is_restored: bool = False
    wish: NodeWish | None = None
    rpc: str = ''
    look_rules: int = 0
    free_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Node:
    """A node, as this one sees it.

    :ivar record: its row.
    :ivar state: by its beat.
    :ivar silent_seconds: since its beat was seen to change.
    """

    record: NodeRecord
    state: NodeState
    silent_seconds: float

    @property
    def takes_images(self) -> bool:
        """Whether it is to work on images that nobody works on."""
        return self.state is NodeState.UP and self.record.wish is None


class Membership:
    """What this node knows of all nodes, itself included.

    :param own: number of this node's row.
    :param clock: monotonic seconds.
    """

    def __init__(self, own: int, clock: Callable[[], float] = time.monotonic):
        self.own = own
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows, for steps in memory
        self._records: dict[int, NodeRecord] = {}
        # Since when each beat stands still, as far as this node was not blind since, in monotonic
        # seconds; and for how many seconds it had before.
        self._changed_at: dict[int, float] = {}
        self._silent_before: dict[int, float] = {}
        # The last look; whether that counts.
        self._seen_at, self._is_blind = float('-inf'), False

    def observe(self, records: Iterable[NodeRecord]) -> None:
        """Take all nodes' rows, as they were just after this node's own beat was written."""
        now = self._clock()
        with self._lock:
            before, was_blind = self._records, not self.may_judge
            self._records = {record.number: record for record in records}
            stand = {number for number, record in self._records.items()
                     if number in before and before[number].beat == record.beat}
            self._silent_before = {
                number: self._silent_before.get(number, 0.0) + (
                    self._seen_at - self._changed_at[number] if was_blind else 0.0)
                for number in stand}
            self._changed_at = {number: self._changed_at[number] if number in stand
                                and not was_blind else now for number in self._records}
            self._seen_at, self._is_blind = now, False

    def forget_clocks(self) -> None:
        """Judge nobody until the next look, and all of them anew from then on: this node was not
        as others are to be."""
        with self._lock:
            self._is_blind = True

    @property
    def may_judge(self) -> bool:
        """Whether what this node sees of others counts."""
        return not self._is_blind and self._clock() - self._seen_at <= _BLIND_SECONDS

    def nodes(self) -> list[Node]:
        """Return all nodes, by name."""
        with self._lock:
            found = [self._seen(record) for record in self._records.values()]
        return sorted(found, key=lambda node: node.record.name)

    def node(self, number: int) -> Node | None:
        """Return a node, by its row's number; None if it is not known."""
        with self._lock:
            record = self._records.get(number)
            return None if record is None else self._seen(record)

    def _seen(self, record: NodeRecord) -> Node:
        """Return a node as it is seen now; under the lock."""
        now = self._clock() - self._changed_at[record.number]
        silent = 0.0 if record.number == self.own \
            else now + self._silent_before.get(record.number, 0.0)
        state = NodeState.UP if not self.may_judge or not silent or now < AWAY_SECONDS else \
            NodeState.AWAY if silent < OUT_SECONDS else NodeState.OUT
        return Node(record, state, silent)

    def leaving(self) -> list[Node]:
        """Return the other nodes that lose all of their images: as an operator says, or as they are
        out; the latter not while most are away."""
        keeps_out = self.are_most_away
        return [node for node in self.nodes() if node.record.number != self.own and (
            node.record.wish is not None or (node.state is NodeState.OUT and not keeps_out))]

    @property
    def are_several(self) -> bool:
        """Whether there are other nodes."""
        return len(self._records) > 1

    @property
    def takes_images(self) -> bool:
        """Whether this node gets images that nobody works on: no operator drains it."""
        record = self._records.get(self.own)
        return record is None or record.wish is None

    @property
    def are_most_away(self) -> bool:
        """Whether more than half of the others are away, of two or more: then it is rather this
        node that does not see them, and it takes over only what somebody asks for."""
        others = [node for node in self.nodes() if node.record.number != self.own]
        return len(others) >= 2 and 2 * sum(
            node.state is not NodeState.UP for node in others) > len(others)
