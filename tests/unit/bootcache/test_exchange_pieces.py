"""In which pieces files are exchanged."""

import pytest

from bootcache.exchange import limits

MIB = 1 << 20


@pytest.mark.parametrize('size, piece', [
    (1, 64 << 10), (128 * MIB, 64 << 10), (128 * MIB + 1, 128 << 10), (2048 * MIB, MIB),
    (1 << 40, 16 * MIB)])
def test_they_are_small_and_not_too_many(size, piece):
    assert limits.piece_bytes(size) == piece
