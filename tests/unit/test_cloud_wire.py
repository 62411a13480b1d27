"""What the test cloud reads of the logs of what crossed the wire."""

import pytest

from tools.cloud.wire import end_of_lines


@pytest.mark.parametrize(('log', 'end'), [
    (b'', 0), (b'begun', 0), (b'one\n', 4), (b'one\nbegun', 4), (b'one\ntwo\nbe', 8),
    (b'x' * 99_999 + b'\n' + b'y' * 100, 100_000)])
def test_a_line_that_is_being_written_is_not_there_yet(tmp_path, log, end):
    path = tmp_path / 'log'
    path.write_bytes(log)
    assert end_of_lines(path) == end
