"""Torrents of files that hosts exchange: what they have to be."""

import os

import pytest

from bootcache import exception
from bootcache.exchange import members


def test_a_torrent_is_read_as_it_was_made(swarm):
    assert swarm.torrents.read(swarm.torrent.data) == vars(swarm.torrent)
    assert swarm.torrent.size == os.path.getsize(swarm.path)
    assert len(swarm.torrent.name) == 64


def without_ca(entry):
    del entry[b'info'][b'ssl-cert']


def another_name(entry):
    entry[b'info'][b'name'] = b'else'
    entry[b'info'][b'file tree'] = {b'else': entry[b'info'][b'file tree'].pop(
        members.NAME.encode())}


@pytest.mark.parametrize('change', [without_ca, another_name])
def test_torrents_of_another_kind_are_refused(swarm, change):
    entry = swarm.torrents.decode(swarm.torrent.data)
    change(entry)
    with pytest.raises(exception.ExchangeFailed):
        swarm.torrents.read(swarm.torrents.encode(entry))


@pytest.mark.parametrize('data', [b'', b'x', b'd4:infod6:lengthi5eee', b'x' * (2 << 20)])
def test_what_is_no_torrent_is_refused(swarm, data):
    with pytest.raises(exception.ExchangeFailed):
        swarm.torrents.read(data)


def test_an_empty_file_has_none(swarm):
    with open(f'{swarm.directory}/empty', 'w'):
        pass
    with pytest.raises(exception.ExchangeFailed, match='empty'):
        swarm.torrents.make(f'{swarm.directory}/empty', 'ca')
