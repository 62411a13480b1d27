"""What a guest says of its files after its gateway was killed."""

import pytest
import yaml

from tools.demo import killed
from tools.demo.killed import Killed


@pytest.mark.parametrize(('console', 'found'), [
    ('boot\r\nfiles: 0 wrong, 0 errors\r\n', (0, 0)), ('files: 12 wrong, 3 errors', (12, 3)),
    ('files: are read\r\n', None), ('[  1.0] files: 0 wrong, 0 errors', None), ('', None)])
def test_the_answer_is_a_line_of_its_own(console, found):
    assert killed.answer(console) == found


def test_errors_and_wrong_files_break_a_promise():
    assert Killed(1.5, 0, 0).broken_promises() == []
    for bad in (Killed(1.5, 1, 0), Killed(1.5, 0, 2)):
        assert bad.broken_promises() == [str(bad)]
    assert str(Killed(1.5, 0, 0)).startswith(
        'gateway killed while a server ran: it waited 1.5 s, 0 errors')


def test_what_the_guest_is_told_is_one_command():
    [[shell, option, script]] = yaml.safe_load(killed.USER_DATA)['runcmd']
    assert (shell, option) == ('sh', '-c') and script.startswith('exec >/dev/console 2>&1; ')
    assert killed.BEGUN in script and 'files: $wrong wrong, $errors errors"' in script
