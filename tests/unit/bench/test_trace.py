"""Traces: their file, and the think times that they keep."""

import gzip
import json

import pytest

from bench.replay import record, trace
from bench.replay.trace import Event, Header, Request, Trace
from bootcache.workingset import Extent

HEADER = Header('small', 'ab' * 32, 1 << 20, 2, 1.5, 0.25, {'accelerator': 'tcg'})


def events(*spans):
    return [Event('r', 4096 * index, 4096, *span) for index, span in enumerate(spans)]


def test_a_trace_comes_back_from_its_file(tmp_path):
    made = Trace(HEADER, trace.from_events(events((1, 2), (2.5, 3), (3.125, 4)), 0.5))
    made.save(tmp_path / 'deep' / 'trace.jsonl.gz')
    assert Trace.load(tmp_path / 'deep' / 'trace.jsonl.gz') == made
    assert [path.name for path in (tmp_path / 'deep').iterdir()] == ['trace.jsonl.gz']
    assert len(made.boot) == 2


@pytest.mark.parametrize('change', [
    {'version': 2}, {'format': 'other'}, {'boot_requests': 3}, {'more': 1}, None])
def test_what_is_no_trace_is_refused(tmp_path, change):
    path = tmp_path / 'trace'
    Trace(HEADER, trace.from_events(events((1, 2), (2.5, 3)), 0.5)).save(path)
    with gzip.open(path, 'rt') as stream:
        head, *lines = stream.read().splitlines()
    head = 'nonsense' if change is None else json.dumps({**json.loads(head), **change})
    with gzip.open(path, 'wt') as stream:
        stream.write('\n'.join([head, *lines]))
    with pytest.raises(trace.TraceError, match='record it again'):
        Trace.load(path)


@pytest.mark.parametrize('request_', [
    Request('x', 0, 1, -1, 0, 0), Request('r', 0, 1, 0, 0, 0), Request('r', 0, 1, -1, -1, 0),
    Request('r', 1 << 20, 1, -1, 0, 0), Request('r', -1, 1, -1, 0, 0)])
def test_requests_that_make_no_sense_are_refused(request_):
    with pytest.raises(trace.TraceError):
        Trace(HEADER, (request_, Request('f', 0, 0, -1, 0, 0))).check()


def test_think_time_runs_from_the_last_completion_before_the_issue():
    made = trace.from_events(events((1, 2), (2.5, 9), (2.75, 4), (5, 6), (10, 11)), 0.5)
    assert [(one.after, one.think) for one in made] == [
        (-1, 0.5), (0, 0.5), (0, 0.75), (2, 1), (1, 1)]
    assert [one.service for one in made] == [1, 6.5, 1.25, 1, 1]


def test_a_completion_at_the_time_of_the_issue_was_heard_of():
    made = trace.from_events(events((1, 2), (2, 3)), 0)
    assert (made[1].after, made[1].think) == (0, 0)


def test_a_request_never_hangs_on_a_later_one():
    # Two threads of the server noted them in another order than their times tell.
    made = trace.from_events(events((2, 3), (1, 1.5), (4, 5)), 0)
    assert all(one.after < index for index, one in enumerate(made))


def test_the_ideal_time_of_a_recording_is_the_recording():
    made = trace.from_events(events((1, 2), (2.5, 9), (2.75, 4), (5, 6), (10, 11)), 0.5)
    assert trace.ideal_seconds(made, 0.25) == pytest.approx(11 - 0.5 + 0.25)
    # Nothing but thinking; the last one still waits for its predecessor.
    assert trace.ideal_seconds(made, 0.25, service=[0] * 5) == pytest.approx(2.5)
    assert trace.ideal_seconds(made, 0.25, scale=2, service=[0] * 5) == pytest.approx(5)


def test_what_the_guest_wrote_is_not_read_from_the_base():
    def request(op, offset, length):
        return Request(op, offset, length, -1, 0, 0)

    made = [request('w', 4096, 4096), request('r', 0, 12288), request('f', 0, 0),
            request('w', 20000, 100), request('r', 16384, 4096), request('z', 32768, 4096),
            request('t', 40960, 4096), request('r', 40960, 512)]
    assert trace.read_extents(made, 4096, 1 << 20) == [
        Extent(0, 4096), Extent(8192, 4096), Extent(16384, 4096), Extent(40960, 4096)]


LOG = """\
2026-01-02 03:04:05.000000 Ready thread_model=3
2026-01-02 03:04:05.100000 connection=1 Connect export="" tls=0 size=0x100000 write=1
2026-01-02 03:04:05.200000 connection=1 Read id=1 offset=0x200 count=0x400 ...
2026-01-02 03:04:05.210000 connection=1 Write id=2 offset=0x1000 count=0x1000 fua=0 ...
2026-01-02 03:04:05.230000 connection=1 ...Write id=2 return=0
2026-01-02 03:04:05.240000 connection=1 ...Read id=1 return=0
2026-01-02 03:04:05.250000 connection=1 Flush id=3 ...
2026-01-02 03:04:05.260000 connection=1 ...Flush id=3 return=0
2026-01-02 03:04:05.300000 connection=1 Read id=4 offset=0x0 count=0x200 ...
"""


def test_a_log_becomes_a_trace():
    found = record.parse_log(LOG)
    start = found[0].issued - 0.2
    made = record.make_trace(found, start, start + 0.255, HEADER)
    assert [(one.op, one.offset, one.length, one.after, one.think) for one in made.requests] == [
        ('r', 512, 1024, -1, 0.2), ('w', 4096, 4096, -1, 0.21), ('f', 0, 0, 0, 0.01)]
    # The flush was not over when the marker came.
    assert made.header.boot_requests == 3 and made.header.tail == pytest.approx(0.015)
    assert made.header.boot_seconds == pytest.approx(0.255)


def test_a_failed_request_spoils_a_recording():
    with pytest.raises(trace.TraceError, match='failed'):
        record.parse_log(LOG.replace('Write id=2 return=0', 'Write id=2 return=-1 error=EIO'))
