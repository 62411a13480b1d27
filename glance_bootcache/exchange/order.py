"""Who gets pieces of a file from whom: each host from few that asked for it before it. Pure.

In a full mesh all hosts ask the source for what none of them has; told of two predecessors each,
one copy leaves it, and all can finish as soon as one has. Two of them, never one: one may die. The
storage node is the second one where no other host has asked; not where the only one has all of it.
Those of the same rack come first, so that a rack's link carries a file about once.
"""

import dataclasses
import itertools
from collections.abc import Sequence

# Told to each host.
PREDECESSORS = 2

Peer = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Member:
    """A host that has asked for a file.

    :ivar host: its name.
    :ivar peer: where its exchange listens.
    :ivar rack: what it is near to, as its operator calls it; empty if it does not say.
    :ivar until: when it is counted no longer, in monotonic seconds.
    :ivar is_complete: whether it has all of it.
    """

    host: str
    peer: Peer
    rack: str
    until: float
    is_complete: bool = False


def predecessors(before: Sequence[Member], rack: str, storage: Peer) -> tuple[Peer, ...]:
    """Return from whom a host gets pieces.

    :param before: who asked before it, the last one last.
    :param rack: the host's own.
    :param storage: the storage node's, for the first hosts.
    """
    near = (member for member in reversed(before) if rack and member.rack == rack)
    far = (member for member in reversed(before) if not (rack and member.rack == rack))
    # No more of a long line is looked at than is needed.
    chosen = list(itertools.islice(itertools.chain(near, far), PREDECESSORS))
    peers = tuple(member.peer for member in chosen)
    if len(chosen) == PREDECESSORS or any(member.is_complete for member in chosen):
        return peers
    return *peers, storage
