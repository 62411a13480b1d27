"""Arguments that several commands have."""

import argparse

import pytest
from fakes_cli import IMAGE

from glance_bootcache.cli import arguments


@pytest.mark.parametrize('parse', [arguments.count(9), arguments.seconds, arguments.size])
def test_digits_are_those_of_ascii(parse):
    """Python's own parsers of numbers take those of any script."""
    assert parse('3') == 3
    for text in '\u0663', '\uff13', '3\u0660', '':
        with pytest.raises(argparse.ArgumentTypeError, match='is not a'):
            parse(text)


@pytest.mark.parametrize('text', ['0', '10', '-1', '1_0', '1.0', '1' * 5000])
def test_no_counts(text):
    with pytest.raises(argparse.ArgumentTypeError, match='not a number from 1 to 9'):
        arguments.count(9)(text)


@pytest.mark.parametrize('command, option, cure', [
    ('warm', '--host', 'openstack aggregate create'), ('evict', '--aggregate', '--host')])
def test_an_option_of_another_command_says_what_stands_for_it(cli, command, option, cure):
    done = cli(command, IMAGE, option, 'one')
    assert done.code == 2 and f'argument {option}' in done.err and cure in done.err
    assert option not in cli(command, '--help').out
    assert cli.api.calls == []


def test_a_snapshot_of_nothing_that_is_named_is_a_wrong_argument(cli):
    done = cli('snapshot')
    assert done.code == 2 and 'give --aggregate, --project or --server' in done.err


def test_a_snapshot_makes_no_folder_for_its_file(cli, tmp_path):
    done = cli('snapshot', '--server', 'one', '--output', str(tmp_path / 'none' / 'file'))
    assert done.code == 1 and f'no folder {tmp_path}/none;' in done.err
    assert not (tmp_path / 'none').exists()
