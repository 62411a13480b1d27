"""``bootcache node``, on a fake of the RPC client; see fakes_cli.py."""

import pytest
from fakes_cli import node

from bootcache.exception import StorageServiceAway
from bootcache.rpc.messages import ListNodes, SetNodeWish

COLUMNS = ['node', 'state', 'seen', 'images', 'free_bytes', 'rpc', 'notes']


@pytest.fixture
def nodes(cli):
    cli.api.nodes = [node('storage-1', images=3, silent=0.0), node('storage-2')]
    return cli


def test_nodes_are_listed(nodes):
    rows = nodes.json('node', 'list')
    assert [list(row) for row in rows] == [COLUMNS] * 2
    assert rows[0] == {'node': 'storage-1', 'state': 'up', 'seen': 0, 'images': 3,
                       'free_bytes': 1 << 30, 'rpc': '2.1', 'notes': None}
    assert rows[1]['seen'] == 1
    assert nodes.api.calls == [ListNodes()]


def test_nothing_stands_in_a_table_where_nothing_is_known(cli):
    cli.api.nodes = [node('storage-1', rpc='', state='away')]
    table = cli('node', 'list')
    assert table.code == 0 and 'None' not in table.out and '| away ' in table.out
    assert cli.json('node', 'list')[0]['rpc'] is None


@pytest.mark.parametrize('wish, state, images, shown', [
    (None, 'up', 0, 'up'), (None, 'away', 3, 'away'), (None, 'out', 3, 'out'),
    ('drained', 'up', 3, 'draining'), ('drained', 'up', 0, 'drained'),
    # It can be stopped by then.
    ('drained', 'away', 0, 'away'), ('drained', 'out', 3, 'out'),
    ('forgotten', 'up', 0, 'forgotten'), ('forgotten', 'away', 3, 'forgotten'),
    ('forgotten', 'out', 0, 'forgotten')])
def test_states_are_as_operators_know_them(cli, wish, state, images, shown):
    cli.api.nodes = [node('storage-1', wish=wish, state=state, images=images)]
    assert cli.json('node', 'list')[0]['state'] == shown


def test_a_node_that_removes_nothing_says_so(cli):
    cli.api.nodes = [node('storage-1', restored=True)]
    assert cli.json('node', 'list')[0]['notes'] == 'restored'
    assert 'db accept' in cli('node', 'list', '--help').out


def test_names_are_one_line(cli):
    cli.api.nodes = [node('a\nb\x1b[2J', rpc='2\n1')]
    row, = cli.json('node', 'list')
    assert row['node'].isprintable() and row['rpc'].isprintable()


def test_without_nodes_the_list_says_why(cli):
    listed = cli('node', 'list')
    assert (listed.code, listed.out) == (0, '')
    assert 'each does within 5 seconds' in listed.err


@pytest.mark.parametrize('command, wish', [
    ('drain', 'drained'), ('resume', None), ('forget', 'forgotten')])
def test_what_is_wanted_of_nodes_is_said_of_each(nodes, command, wish):
    assert nodes.json('node', command, 'storage-1', 'storage-2') \
        == [{'node': 'storage-1'}, {'node': 'storage-2'}]
    assert nodes.api.calls == [SetNodeWish('storage-1', wish), SetNodeWish('storage-2', wish)]


@pytest.mark.parametrize('command', ['drain', 'resume', 'forget'])
def test_one_that_is_not_known_is_an_error_and_the_others_are_done(nodes, command):
    done = nodes('node', command, 'nobody', 'storage-1')
    assert done.code == 1
    assert 'there is no storage node nobody; "bootcache node list" shows' in done.err
    assert [message.name for message in nodes.api.calls] == ['nobody', 'storage-1']


@pytest.mark.parametrize('command', ['drain', 'forget'])
def test_a_refusal_is_told_as_it_is(nodes, command):
    nodes.api.refused['storage-1'] = 'the storage node storage-1 works'
    done = nodes('node', command, 'storage-1')
    assert done.code == 1 and 'the storage node storage-1 works' in done.err
    assert 'Traceback' not in done.err and done.out == ''


@pytest.mark.parametrize('command', ['drain', 'resume', 'forget'])
def test_a_node_has_to_be_named(cli, command):
    done = cli('node', command)
    assert done.code == 2 and 'node' in done.err and cli.api.calls == []


@pytest.mark.parametrize('words', [('list',), ('drain', 'storage-1')], ids=' '.join)
def test_a_service_that_does_not_answer_is_told_of(nodes, words):
    nodes.api.fails = StorageServiceAway('nobody answers')
    done = nodes('node', *words)
    assert done.code == 1 and 'nobody answers' in done.err and 'Traceback' not in done.err
