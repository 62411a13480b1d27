"""What the test cloud reads of the logs of what crossed the wire."""

import pytest

from tools.cloud.wire import Position, Wire, end_of_lines


@pytest.mark.parametrize(('log', 'end'), [
    (b'', 0), (b'begun', 0), (b'one\n', 4), (b'one\nbegun', 4), (b'one\ntwo\nbe', 8),
    (b'x' * 99_999 + b'\n' + b'y' * 100, 100_000)])
def test_a_line_that_is_being_written_is_not_there_yet(tmp_path, log, end):
    path = tmp_path / 'log'
    path.write_bytes(log)
    assert end_of_lines(path) == end


def test_what_hosts_write_is_counted_within_a_window(tmp_path):
    """Lines as nbdkit's filter writes them, when a request comes and when it is answered."""
    stamp = '2026-11-25 12:00:00.000001'
    lines = [f'{stamp} connection=1 Connect export=snapshot-ab tls=1 size=0x100000 write=1',
             f'{stamp} connection=1 Write id=1 offset=0x0 count=0x1000 fua=0',
             f'{stamp} connection=1 ...Write id=1 return=0',
             f'{stamp} connection=1 Write id=2 offset=0x10000 count=0x200 fua=0',
             f'{stamp} connection=1 Zero id=3 offset=0x20000 count=0x8000 trim=1',
             f'{stamp} connection=1 Read id=4 offset=0x0 count=0x1000']
    tap = tmp_path / 'tap'
    tap.write_text(''.join(f'{line}\n' for line in lines))
    wire = Wire(tap, tmp_path / 'access')
    whole = Position(0, 0), Position(tap.stat().st_size, 0)
    assert wire.written(*whole) == 0x1200
    after_the_first = Position(sum(len(line) + 1 for line in lines[:3]), 0)
    assert wire.written(after_the_first, whole[1]) == 0x200
    assert [request.length for request in wire.requests(*whole)] == [0x1000]
