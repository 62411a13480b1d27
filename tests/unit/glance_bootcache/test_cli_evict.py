"""``bootcache evict``, on a fake of the RPC client and of time; see fakes_cli.py."""

import json

import pytest
from fakes_cli import IMAGE, OTHER, held

from bootcache.rpc.messages import EvictImage


@pytest.fixture
def holders(cli):
    """Hosts that hold the image; each one has just reported, and is known."""
    cli.api.where[IMAGE] = {'storage': 'disk', 'hosts': [held('one'), held('two')]}
    cli.api.hosts = [{'host': 'one'}, {'host': 'two'}]
    return cli.api.where[IMAGE]['hosts']


def reports(cli, host, every):
    """Let a host report again and again, and hold the image."""
    began = cli.time.now

    class Entry(dict):
        def __getitem__(self, name):
            if name == 'seen':
                return (cli.time.now - began) % every
            return super().__getitem__(name)
    return Entry(held(host))


def lets_go(cli, holders, host, after):
    cli.time.after(after, lambda: holders.remove(
        next(entry for entry in holders if entry['host'] == host)))


def outcomes(done):
    return {(row['image_id'], row['host']): row['outcome'] for row in json.loads(done.out)}


def test_hosts_let_go(cli, holders):
    lets_go(cli, holders, 'two', 30)
    lets_go(cli, holders, 'one', 75)
    done = cli('evict', IMAGE, '-f', 'json')
    assert done.code == 0
    assert outcomes(done) == {(IMAGE, 'one'): 'gone', (IMAGE, 'two'): 'gone'}
    assert done.err.splitlines() == [
        '     0 s  letting go  0/2 hosts', f'    30 s  image {IMAGE}, host two: gone',
        f'    75 s  image {IMAGE}, host one: gone']
    assert cli.api.calls[0] == EvictImage(IMAGE, None)


def test_single_hosts(cli, holders):
    lets_go(cli, holders, 'two', 5)
    done = cli('evict', IMAGE, '--host', 'two', '--host', 'three', '--host', 'two', '-f', 'json')
    assert done.code == 0
    assert cli.api.calls[0] == EvictImage(IMAGE, ['two', 'three'])
    assert outcomes(done) == {(IMAGE, 'two'): 'gone', (IMAGE, 'three'): 'not held'}
    assert '0/1 hosts' in done.err


def test_not_to_wait(cli, holders):
    done = cli('evict', IMAGE, '--no-wait', '-f', 'json')
    assert done.code == 0 and done.err == '' and cli.time.now == 1000
    assert outcomes(done) == {(IMAGE, 'one'): 'leaving', (IMAGE, 'two'): 'leaving'}


def test_no_host_holds_it(cli, holders):
    holders.clear()
    done = cli('evict', IMAGE, '-f', 'json')
    assert done.code == 0 and json.loads(done.out) == [] and cli.time.now == 1000
    assert 'no host that has reported holds it' in done.err


def test_time_runs_out_and_the_reasons_differ(cli, holders):
    """One reports each minute and has it all the same, two is silent, three reported once."""
    holders[:] = [reports(cli, 'one', 60), held('two', seen=500), reports(cli, 'three', 170)]
    began, two = cli.time.now, holders[1]
    moving = type('Silent', (dict,), {'__getitem__': lambda entry, name: 500 + cli.time.now - began
                                      if name == 'seen' else dict.__getitem__(entry, name)})
    holders[1] = moving(two)
    done = cli('evict', IMAGE, '-f', 'json')
    assert done.code == 1 and cli.time.now == 1300
    assert outcomes(done) == {(IMAGE, 'one'): 'in use', (IMAGE, 'two'): 'silent',
                              (IMAGE, 'three'): 'leaving'}
    message = done.err.splitlines()[-1]
    assert (f'image {IMAGE} is on hosts after 300 s: one: still in use, and gone from there as'
            ' soon as no server there needs it') in message
    assert 'two: not heard of since' in message
    assert 'three: told, but not known to be rid of it yet' in message


def test_a_host_that_keeps_it_is_not_waited_for(cli, holders):
    cli.time.after(4, lambda: holders[0].update(leaving=False))
    lets_go(cli, holders, 'two', 8)
    done = cli('evict', IMAGE, '-f', 'json')
    assert done.code == 1 and cli.time.now < 1020
    assert outcomes(done) == {(IMAGE, 'one'): 'kept', (IMAGE, 'two'): 'gone'}
    assert 'one: kept, as a server was started there meanwhile' in done.err.splitlines()[-1]


def test_a_restarted_service_knows_no_host_at_first(cli, holders):
    """That a host is not among those that hold it counts when the host has reported again."""
    before = list(holders)
    cli.time.after(3, holders.clear)
    cli.time.after(3, cli.api.hosts.clear)
    cli.time.after(20, lambda: holders.append(before[0]))
    cli.time.after(20, lambda: cli.api.hosts.extend([{'host': 'one'}, {'host': 'two'}]))
    lets_go(cli, holders, 'one', 60)
    done = cli('evict', IMAGE, '-f', 'json')
    assert done.code == 0
    assert f'    20 s  image {IMAGE}, host two: gone' in done.err
    assert f'    60 s  image {IMAGE}, host one: gone' in done.err


def test_an_image_that_is_forgotten_meanwhile(cli, holders):
    cli.time.after(5, lambda: cli.api.where.pop(IMAGE))
    assert cli('evict', IMAGE).code == 0


def test_a_pinned_image_says_so_and_stops_no_other(cli, holders):
    cli.api.refused[OTHER] = f'image {OTHER} is pinned; "bootcache unpin {OTHER}" first'
    lets_go(cli, holders, 'one', 2)
    lets_go(cli, holders, 'two', 2)
    done = cli('evict', OTHER, IMAGE, '-f', 'json')
    assert done.code == 1
    assert outcomes(done) == {(IMAGE, 'one'): 'gone', (IMAGE, 'two'): 'gone'}
    assert done.err.splitlines()[-1] == (f'the storage service refused: image {OTHER} is pinned;'
                                         f' "bootcache unpin {OTHER}" first')
