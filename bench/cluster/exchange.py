"""A file that is pushed to many hosts at once, on paper: exchanged by them, and copied to each.

Who gets from whom is the product's own decision. Time goes in rounds, of one piece on a host's
link: in each a host sends one piece to one of those it is connected with, and gets one. Which of
the pieces that it lacks is up to chance, and it asks others if one is busy or has none for it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy

from bench.cluster import calibration
from bench.cluster.storage import nodes_for
from bootcache.exchange import limits
from glance_bootcache.exchange import offers

RACK_HOSTS = 40
# Bytes a second that a host sends and gets: what one core of it encrypts, decrypts and hashes.
HOST_RATE = 1e9 / 8
# Seconds from a piece that has come until others may have asked for it, and it is sent on.
LATENCIES = (0.001, 0.005, 0.02)
# Of those, what is taken where latency is not what is varied.
LATENCY = LATENCIES[1]
FILES = {'cache image': 56.4e6, 'full base': calibration.IMAGE_BYTES.value}
SIZES = {True: (40, 200), False: (40, 200, 1000, 4000, 10_000)}
# How often a host that is without a piece in a round asks another one.
_TRIES = 6
# The bit that is set in a byte, the first one from another bit on: it, and the byte, are the keys.
_BITS = numpy.array([[next((bit % 8 for bit in range(begin, begin + 8) if byte >> bit % 8 & 1), 0)
                      for byte in range(256)] for begin in range(8)])


@dataclasses.dataclass(frozen=True)
class Push:
    """A file that all hosts of a cloud ask for at the same time.

    :ivar file: which one, of ``FILES``.
    :ivar latency: seconds from a piece's end until it can be sent on.
    """

    file: str
    hosts: int
    latency: float = LATENCY


def plan(quick: bool) -> Iterator[Push]:
    """Yield what is looked at."""
    for file in FILES:
        for hosts in SIZES[quick]:
            yield Push(file, hosts)
    for latency in LATENCIES:
        if latency != LATENCY:
            yield Push('cache image', SIZES[quick][-1], latency)


def connections(racks: numpy.ndarray) -> list[list[int]]:
    """Return with whom each host is connected, by numbers; the storage node's is that of all hosts.

    :param racks: of each host, in the order in which they ask.
    """
    storage = '', 0
    before: list[offers.Member] = []
    found: list[list[int]] = [[] for _host in racks]
    for host, rack in enumerate(racks):
        for name, number in offers.predecessors(before, str(rack), storage):
            other = int(name) if (name, number) != storage else len(racks)
            found[host].append(other)
            if other < len(racks):
                found[other].append(host)
        before.append(offers.Member(str(host), (str(host), 1), str(rack), 0.0))
    return found


class Swarm:
    """Hosts that exchange a file, and a storage node that has it.

    :param racks: of each host, in the order in which they ask.
    :param pieces: of the file.
    :param delay: rounds from a piece's end until it can be sent on.
    :param sends: pieces that the storage node sends in a round, at most.
    """

    def __init__(self, racks: numpy.ndarray, pieces: int, delay: int, sends: int,
                 chance: numpy.random.Generator):
        hosts = len(racks)
        known = connections(racks)
        self._degree = numpy.array([len(others) for others in known])
        self._known = numpy.full((hosts, self._degree.max()), -1)
        for host, others in enumerate(known):
            self._known[host, :len(others)] = others
        self._racks = numpy.append(racks, -1)
        # A bit for each piece.
        self._has = numpy.zeros((hosts + 1, -(-pieces // 8)), numpy.uint8)
        self._has[hosts] = numpy.packbits(numpy.ones(pieces, bool), bitorder='little')
        self._gives = self._has.copy()
        self._delay, self._sends, self._chance = delay, sends, chance
        self._under_way: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        self.left = numpy.full(hosts, pieces)
        self.sent = numpy.zeros(hosts + 1, int)
        self.crossed = 0

    def round(self) -> None:
        """Have one round pass."""
        if len(self._under_way) > self._delay:
            self._add(self._gives, *self._under_way.pop(0))
        may_send = numpy.ones(len(self.sent), int)
        may_send[-1] = self._sends
        waiting = numpy.flatnonzero(self.left)
        got = []
        for _try in range(_TRIES):
            host, other, piece = self._matched(waiting, may_send)
            self._add(self._has, host, piece)
            self.left[host] -= 1
            self.sent[other] += 1
            may_send[other] -= 1
            self.crossed += int((self._racks[host] != self._racks[other]).sum())
            got.append((host, piece))
            waiting = numpy.setdiff1d(waiting, host, assume_unique=True)
        hosts, pieces = zip(*got, strict=True)
        self._under_way.append((numpy.concatenate(hosts), numpy.concatenate(pieces)))

    @staticmethod
    def _add(table: numpy.ndarray, hosts: numpy.ndarray, pieces: numpy.ndarray) -> None:
        """Note pieces of hosts; of each host one at most."""
        table[hosts, pieces // 8] |= (1 << pieces % 8).astype(numpy.uint8)

    def _matched(self, waiting: numpy.ndarray,
                 may_send: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
        """Return hosts that get a piece, of whom, and which; nobody sends two at once."""
        asked = self._known[waiting, self._chance.integers(1 << 30, size=len(waiting))
                            % self._degree[waiting]]
        turns = self._chance.permutation(numpy.flatnonzero(may_send[asked] > 0))
        host, other = waiting[turns], asked[turns]
        lacks = self._gives[other] & ~self._has[host]
        begin = int(self._chance.integers(lacks.shape[1]))
        byte = numpy.concatenate((lacks[:, begin:], lacks[:, :begin]), 1).astype(bool).argmax(1)
        byte = (byte + begin) % lacks.shape[1]
        bits = lacks[numpy.arange(len(host)), byte]
        piece = 8 * byte + _BITS[self._chance.integers(8), bits]
        found = bits > 0
        host, other, piece = host[found], other[found], piece[found]
        other, first = numpy.unique(other, return_index=True)
        return host[first], other, piece[first]


def spread(swarm: Swarm) -> int:
    """Have rounds pass until all hosts have the file; how many those are."""
    rounds = 0
    while swarm.left.any():
        swarm.round()
        rounds += 1
    return rounds


def push(task: tuple[Push, int]) -> dict[str, Any]:
    """Push a file; what that took and sent, beside copies of it.

    ``time`` is until the last host has it, over that of one copy to one host; ``storage_copies``
    are sent by the storage node, ``rack_copies`` come into each rack, in the mean; ``most_sent``
    is sent by one host. Copies to all hosts come from all storage nodes of a cloud of that size,
    an exchanged file begins at one.
    """
    what, seed = task
    chance = numpy.random.default_rng(seed)
    size = FILES[what.file]
    piece_bytes = limits.piece_bytes(int(size))
    pieces = -(-int(size) // piece_bytes)
    racks = chance.permutation(numpy.arange(what.hosts) // RACK_HOSTS)
    nodes, count = nodes_for(what.hosts), int(racks.max()) + 1
    swarm = Swarm(racks, pieces, round(what.latency * HOST_RATE / piece_bytes),
                  int(nodes.link / HOST_RATE), chance)
    rounds = spread(swarm)
    return {**dataclasses.asdict(what), 'bytes': round(size), 'pieces': pieces, 'racks': count,
            'seed': seed, 'time': round(rounds / pieces, 2),
            'copied_time': round(max(1.0, what.hosts * HOST_RATE / (nodes.link * nodes.count)), 2),
            'storage_copies': round(int(swarm.sent[-1]) / pieces, 2),
            'rack_copies': round(swarm.crossed / pieces / count, 2),
            'most_sent': round(int(swarm.sent[:-1].max()) / pieces, 2)}


@dataclasses.dataclass(frozen=True)
class Compared:
    """An exchange that was measured, and what this makes of it.

    :ivar time: over that of one copy, here; ``measured_time`` as measured.
    :ivar copies: that the storage node sends, here; ``measured_copies`` as measured.
    """

    hosts: int
    time: float
    measured_time: float
    copies: float
    measured_copies: float


# ``tools/bench.sh exchange`` of 16 MiB by links of 20 and 10 Mbit/s, the storage node's too, before
# hosts connected with each other at once.
# So slow a link has a piece under way for longer than hosts need for it.
_MEASURED = {8: (1.36, 1.15), 32: (1.39, 1.12)}
_MEASURED_PIECES = 256


def compare(seed: int) -> list[Compared]:
    """Return what was measured, beside the model's."""
    found = []
    for hosts, (seconds, copies) in _MEASURED.items():
        swarm = Swarm(numpy.zeros(hosts, int), _MEASURED_PIECES, 1, 1,
                      numpy.random.default_rng(seed))
        rounds = spread(swarm)
        found.append(Compared(hosts, round(rounds / _MEASURED_PIECES, 2), seconds,
                              round(int(swarm.sent[-1]) / _MEASURED_PIECES, 2), copies))
    return found
