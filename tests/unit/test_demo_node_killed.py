"""What servers are told to have seen when the demo's storage node was killed."""

import pytest

from tools.demo.nodekilled import Look, NodeKilled, draw, longest_wait, paused


def looks(*rows):
    return [Look(*row) for row in rows]


READ_ON = looks((-2, 0, False), (-1, 5, False), (1, 9, False), (2, 12, False))
WAITED = looks((-1, 0, False), (-0.5, 4, False), (0.5, 4, False), (4, 4, True), (20, 4, True),
               (21, 4, False), (22, 8, False), (23, 9, False), (24, 9, False))


@pytest.mark.parametrize(('seen', 'seconds'), [
    ([], 0), (looks((3, 0, False)), 3), (READ_ON, 1), (WAITED, 22),
    (looks((-1, 0, False), (1, 3, False), (9, 3, False)), 8)], ids=str)
def test_the_longest_wait_begins_at_the_kill_at_the_earliest(seen, seconds):
    assert longest_wait(seen) == pytest.approx(seconds)


@pytest.mark.parametrize(('seen', 'found'), [
    ([], []), (READ_ON, []), (WAITED, [(4, 17)]),
    (looks((0, 0, True), (1, 0, False), (2, 0, True), (5, 0, True)), [(0, 1), (2, 3)])], ids=str)
def test_when_a_server_was_paused(seen, found):
    assert paused(seen) == found


def test_what_is_told_and_drawn(tmp_path):
    told = NodeKilled(tuple(longest_wait(seen) for seen in (READ_ON, WAITED)), (0.0, 17.0))
    assert 'of 2 servers' in str(told) and 'for 1.0 to 22.0 s' in str(told)
    draw(tmp_path / 'picture.png', [READ_ON, WAITED])
    assert (tmp_path / 'picture.png').read_bytes().startswith(b'\x89PNG')
