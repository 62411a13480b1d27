"""A server that goes the stock way in the end leaves nothing of what was made for it until then.

The storage service and the gateway are stand-ins; see tests/functional/test_compute_host.py.
"""

import dataclasses
import errno
import os

import pytest
from fakes_letting_go import IMAGE, MIB, SERVER, place
from fakes_letting_go import decides as decides  # the fixture
from fakes_letting_go import host as host  # the fixture

from bootcache import exception, qemuimg
from bootcache.manifest import CacheInfo
from nova_bootcache.cache.cachefiles import CacheEntry

INFO = CacheInfo('cache', 1000, 900, 3, 'ab', MIB, 65536, MIB, 'nbd:', 1.5, 1)


class Cold:
    """Stands for a storage service that has the base alone."""

    def send(self, message):
        return {'action': 'cold', 'virtual_bytes': MIB, 'server': ['10.0.0.1', 10810],
                'base_export': f'base-{message.image_id}', 'image_hash': ''}


@pytest.fixture
def away(host, decides, monkeypatch):
    """A host with nothing, on which servers' bases cannot be served."""
    def ensure_base(remote):
        raise exception.StorageNodeAway('away')

    host.storage._client = Cold()
    host.needs.note_unsettled([])
    monkeypatch.setattr(host.gateway, 'ensure_base', ensure_base)
    return host


def boots(host, tmp_path, name='disk'):
    return host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / name), MIB, False)


def files(host):
    return os.listdir(host.cache.directory)


def test_a_base_that_cannot_be_reached(away, tmp_path):
    """Its empty cache image lay there for up to ten minutes, and its host was told to have it."""
    assert boots(away, tmp_path) is False
    assert files(away) == [] and away.cache.known(IMAGE) is None


def test_a_disk_that_cannot_be_written(away, tmp_path, monkeypatch):
    """Nor does the gateway serve a base for nobody."""
    create = qemuimg.create_overlay

    def full(path, *arguments, **options):
        if path.startswith(str(tmp_path / 'disk')):
            raise OSError(errno.ENOSPC, 'no space left')
        create(path, *arguments, **options)

    monkeypatch.setattr(qemuimg, 'create_overlay', full)
    monkeypatch.setattr(away.gateway, 'ensure_base', lambda remote: 'base-x')
    assert boots(away, tmp_path) is False
    assert files(away) == [] and away.removed == [IMAGE]


def test_a_disk_that_comes_from_another_host_and_gets_a_stock_base(away, tmp_path):
    path = tmp_path / 'disk'
    path.touch()
    assert away.chains.adopt(IMAGE, str(path)) is False
    assert files(away) == []


def test_another_server_of_the_image_that_needs_it_keeps_it(away, tmp_path):
    """The last one to fail takes it along."""
    with away.needs.making(IMAGE, str(tmp_path / 'another')):
        assert boots(away, tmp_path) is False
        assert away.cache.known(IMAGE) is not None
    assert boots(away, tmp_path) is False
    assert files(away) == []


@pytest.mark.parametrize('unsettled', [None, [IMAGE]], ids=['not known yet', 'one'])
def test_servers_that_run_from_it_keep_it(away, tmp_path, unsettled):
    if unsettled is None:
        away.needs._unsettled = None
    else:
        away.needs.note_unsettled(unsettled)
    assert boots(away, tmp_path) is False
    assert away.cache.known(IMAGE).cache_image is None and away.removed == []


def test_a_whole_one_stays(away, tmp_path):
    place(away)
    path = f'{away.cache.path(IMAGE)}.json'
    dataclasses.replace(CacheEntry.load(path), cache_image=INFO).save(path)
    assert boots(away, tmp_path) is False
    assert away.cache.known(IMAGE).cache_image == INFO and away.removed == []


def test_one_that_cannot_be_removed_is_told_and_fails_nothing(away, tmp_path, monkeypatch, caplog):
    caplog.set_level('INFO')

    def remove(image_id):
        raise exception.StorageDaemonBusy('gateway: busy')

    monkeypatch.setattr(away.gateway, 'remove_base', remove)
    assert boots(away, tmp_path) is False
    assert 'its empty cache image stays, for now: gateway: busy' in caplog.text
    lines = [record.getMessage() for record in caplog.records if 'stock way' in record.getMessage()]
    assert len(lines) == 1 and 'away' in lines[0]
