"""Shows that a replay asks for what the real guest asked for, in its order and its time.

The trace is played against the very setting in which the real guest was recorded: nbdkit with the
log and cow filters over the same raw image, on the same machine. Both logs are then compared.
"""

import dataclasses
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import netns, player, record
from bench.replay.trace import Event, Request, Trace


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How a replay compares with the real guest's boot.

    :ivar requests: of the guest's boot.
    :ivar missing: requests of the guest that the replay did not make, and the other way round.
    :ivar bytes_differ: difference in bytes, over all requests.
    :ivar swapped: neighbours that the server's threads noted in the other order, both in flight.
    :ivar disordered: requests that came in another order, beyond that.
    :ivar boot_error: replayed boot's time over the guest's, less 1.
    :ivar worst_lag: the largest distance of a request's time of issue from the guest's, in seconds.
    :ivar median_lag: the median of these distances.
    """

    requests: int
    missing: int
    bytes_differ: int
    swapped: int
    disordered: int
    boot_error: float
    worst_lag: float
    median_lag: float

    @property
    def exact(self) -> bool:
        """Whether bytes and order agree."""
        return not (self.missing or self.bytes_differ or self.disordered)

    def to_json(self) -> dict[str, Any]:
        """Return it for a report."""
        return {**dataclasses.asdict(self), 'exact': self.exact}


def _key(event: Event) -> tuple[str, int, int]:
    return event.op, event.offset, event.length


def compare(guest: Sequence[Event], replay: Sequence[Event], guest_start: float,
            replay_start: float, boot_error: float) -> Agreement:
    """Compare two logs. Pure.

    :param guest: the real guest's requests, in the order of issue.
    :param guest_start: when its machine was started, on its log's clock.
    """
    keys, again = [_key(one) for one in guest], [_key(one) for one in replay]
    count: dict[tuple[str, int, int], int] = {}
    for key in keys:
        count[key] = count.get(key, 0) + 1
    for key in again:
        count[key] = count.get(key, 0) - 1
    missing = sum(abs(number) for number in count.values())
    swapped = disordered = index = 0
    shared = min(len(keys), len(again))
    while index < shared:
        if keys[index] != again[index]:
            overlap = index + 1 < shared and \
                guest[index].completed >= guest[index + 1].issued
            if overlap and keys[index:index + 2] == again[index:index + 2][::-1]:
                swapped += 1
                index += 2
                continue
            disordered += 1
        index += 1
    lags = sorted(abs((new.issued - replay_start) - (old.issued - guest_start))
                  for old, new in zip(guest, replay, strict=False))
    return Agreement(len(keys), missing,
                     sum(one.length for one in guest) - sum(one.length for one in replay),
                     swapped, disordered, round(boot_error, 5),
                     round(lags[-1], 6) if lags else 0.0,
                     round(lags[len(lags) // 2], 6) if lags else 0.0)


def events_of(trace: Trace) -> list[Event]:
    """Return a trace's boot as the events that it was made of, from second 0. Pure."""
    events: list[Event] = []
    for one in trace.boot:
        heard = events[one.after].completed if one.after >= 0 else 0.0
        events.append(Event(one.op, one.offset, one.length, heard + one.think,
                            heard + one.think + one.service))
    return events


def calibrate(requests: Sequence[Request] = ()) -> float:
    """Return the seconds by which a request takes longer with the player than in a guest.

    The think times of a trace run from the server's last answer to the next question's arrival: the
    way between server and guest is in them. The player has that way once more, and it wakes up a
    little late. Both are measured, as medians, on a disk of zeros.

    :param requests: to play; without any, a few hundred small reads one after the other.
    """
    requests = requests or [Request('r', 4096 * index, 4096, index - 1, 0.0002, 0.0)
                            for index in range(400)]
    netns.sharp_timers()
    directory = Path(tempfile.mkdtemp(prefix='bcr-cal-', dir='/tmp'))
    try:
        raw = directory / 'raw'
        with open(raw, 'wb') as stream:
            stream.truncate(max(one.end for one in requests))
        with record.recorded_disk(raw, directory) as (socket, log):
            played = player.play(str(socket), '', requests)
            served = record.parse_log(log.read_text())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    way = statistics.median(
        done - begun - (one.completed - one.issued)
        for begun, done, one in zip(played.issued, played.completed, served, strict=True))
    late = statistics.median(
        begun - (played.completed[one.after] if one.after >= 0 else 0.0) - one.think
        for begun, one in zip(played.issued, requests, strict=True))
    return way + late


def check(image: Path, image_format: str, trace: Trace, overhead: float) -> Agreement:
    """Play a trace against the setting of its recording, and compare.

    :param image: that it was recorded of.
    :param overhead: of the player, in seconds a request.
    """
    netns.sharp_timers()
    directory = Path(tempfile.mkdtemp(prefix='bcr-chk-', dir='/tmp'))
    try:
        raw = directory / 'raw'
        subprocess.run(['qemu-img', 'convert', '-f', image_format, '-O', 'raw', str(image),
                        str(raw)], check=True)
        with record.recorded_disk(raw, directory) as (socket, log):
            played = player.play(str(socket), '', trace.boot, trace.header.tail,
                                 overhead=overhead)
            replay = record.parse_log(log.read_text())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    guest = events_of(trace)
    # The log's clock is another one; the player's own first issue ties them together.
    start = replay[0].issued - played.issued[0] if replay else 0.0
    return compare(guest, replay, 0.0, start, played.seconds / trace.header.boot_seconds - 1)
