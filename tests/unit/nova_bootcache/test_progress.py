"""Whether a block copy comes nearer to its end."""

import pytest

from nova_bootcache.settling.pivot import OUTRUN_SECONDS, STALLED_SECONDS, Progress

MIB = 1 << 20
RATE = 50 * MIB


def watched(looks, rate=RATE):
    """Return when a copy was given up, and why; looks are seconds, bytes copied, bytes left."""
    progress = Progress.begun(rate, 0.0)
    for now, copied, left in looks:
        progress = progress.seen(copied, left, now)
        if why := progress.why_in_vain(now):
            return now, why
    return None


def test_one_that_goes_on_is_left_alone_however_long_it_takes():
    assert watched((10.0 * at, MIB * at, MIB * (100_000 - at)) for at in range(100_000)) is None


@pytest.mark.parametrize('copied', [0, 5 * MIB])
def test_one_that_stands_still_is_given_up(copied):
    """Also before a byte was copied: QEMU may not say yet how many there are."""
    looks = [(0.0, 0, 1), *((1.0 + at, copied, 7 * MIB if copied else 1) for at in range(10_000))]
    at, why = watched(looks)
    began = 1.0 if copied else 0.0
    assert STALLED_SECONDS <= at - began <= STALLED_SECONDS + 2
    assert 'nothing of its own data was copied' in why and 'storage node' in why


def test_one_that_goes_on_in_between_is_left_alone():
    still = STALLED_SECONDS * 0.9
    assert watched((still * at, MIB * at, MIB * (500 - at)) for at in range(500)) is None


def test_at_a_low_rate_qemu_waits_for_long_by_itself():
    """It copies 16 MiB at once, and keeps to the rate by waiting after that."""
    rate = 64 << 10
    wait = 16 * MIB / rate
    assert wait > STALLED_SECONDS
    looks = [(wait * step + at, 16 * MIB * (1 + step), 16 * MIB * (50 - step))
             for step in range(20) for at in range(int(wait))]
    assert watched(looks, rate) is None
    at, _why = watched([(float(at), 16 * MIB, MIB) for at in range(10_000)], rate)
    assert at > wait
    # Nobody waits where there is no limit.
    assert watched([(float(at), MIB, MIB) for at in range(1000)], 0)[0] <= STALLED_SECONDS + 1


def test_a_guest_that_writes_as_fast_for_long_is_left_alone():
    at, why = watched((float(at), 50 * MIB * at, 300 * MIB) for at in range(1, 10_000))
    assert OUTRUN_SECONDS <= at <= OUTRUN_SECONDS + 2
    assert 'settle_bandwidth' in why and 'stopped' in why


def test_a_guest_that_writes_for_some_minutes_is_waited_for():
    busy = int(OUTRUN_SECONDS * 0.9)
    looks = [(float(at), 50 * MIB * at, 300 * MIB + MIB * at) for at in range(1, busy)]
    looks += [(float(busy + at), 50 * MIB * (busy + at), MIB * (299 - at)) for at in range(250)]
    assert watched(looks) is None
