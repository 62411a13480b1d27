"""When the demo ends a cloud, and whose. The cloud is a stand-in; tests/e2e has a real one."""

import contextlib
import dataclasses
import importlib
import sys
import types

import pytest

from tools.cloud.processes import ServiceError


@pytest.fixture
def demo(monkeypatch):
    """The demo without its steps: they import the command, which chooses oslo.service's threads."""
    monkeypatch.setitem(sys.modules, 'tools.demo.steps', types.SimpleNamespace(Demo=None))
    return importlib.import_module('tools.demo.__main__')


@pytest.fixture
def house(demo, tmp_path, monkeypatch):
    """The demo's cloud, and what becomes of it in ``did``."""
    def up():
        house.did.append('up')
        if house.refused:
            raise ServiceError('the cloud has 2 hosts, not 1')

    def run(cloud, store, options):
        house.did.append('run')
        if isinstance(house.end, BaseException):
            raise house.end
        return house.end

    def configure():
        home.mkdir(exist_ok=True)

    home = tmp_path / 'cloud'
    house = types.SimpleNamespace(
        home=home, hosts=(), did=[], refused=False, end=[], layout=types.SimpleNamespace(
            log=home / 'log', layers=lambda service: home / service,
            ports=types.SimpleNamespace(glance=9292)),
        openrc=home / 'openrc', config_file=home / 'bootcache.conf', configure_bootcache=configure,
        layer=lambda *arguments: None, up=up,
        down=lambda wipe: house.did.append(f'down wipe={wipe}'))
    monkeypatch.setattr(demo, 'BootcacheCloud', lambda **options: house)
    monkeypatch.setattr(demo, 'run', run)
    monkeypatch.setattr(demo.link, 'shaped', lambda mbit, senders, stays: contextlib.nullcontext())

    def start(*arguments):
        monkeypatch.setattr(sys, 'argv', ['demo', '--image', 'x', '--report',
                                          str(tmp_path / 'report'), *arguments])
        return demo.main()

    house.start = start
    return house


@pytest.mark.parametrize('was_there', [False, True])
@pytest.mark.parametrize('end, status', [([], 0), (['a promise'], 1), (ServiceError('died'), 1)])
def test_a_cloud_that_came_up_is_ended(house, was_there, end, status):
    """Also one that an earlier demo left up: this one takes it over."""
    house.end = end
    if was_there:
        house.home.mkdir()
    assert house.start() == status
    assert house.did == ['up', 'run', 'down wipe=True']


def test_somebody_elses_cloud_is_left_alone(house, capsys):
    house.home.mkdir()
    house.refused = True
    for arguments in ((), ('--keep',)):
        assert house.start(*arguments) == 1
    assert house.did == ['up', 'up']
    out, err = capsys.readouterr()
    assert '2 hosts' in err and 'is left as it is' in err and 'stays up' not in out


def test_a_cloud_that_did_not_come_up_is_ended_if_it_was_not_there(house):
    house.refused = True
    assert house.start() == 1 and house.did == ['up', 'down wipe=True']


def test_the_logs_of_a_demo_that_failed_are_kept(house, tmp_path):
    house.home.mkdir()
    house.layout.log.mkdir()
    (house.layout.log / 'compute.log').write_text('why')
    house.end = ServiceError('died')
    assert house.start() == 1
    assert (tmp_path / 'report' / 'log' / 'compute.log').read_text() == 'why'


def test_a_cloud_is_kept(house, capsys):
    assert house.start('--keep') == 0
    assert house.did == ['up', 'run'] and 'The cloud stays up' in capsys.readouterr().out


class FakeCeph:
    """Stands for the Ceph of --store rbd: what becomes of it is in ``did``."""

    def __init__(self, did, was_there):
        self._did, self.was_there = did, was_there

    def bring_up(self, cloud):
        self._did.append('Ceph up')

    def senders(self, cloud):
        return [[9292], [6800]]

    def usage(self):
        return 'export CEPH_CONF=there\n'

    def down(self):
        self._did.append('Ceph down')


@pytest.fixture
def ceph(demo, house, monkeypatch):
    """Has the demo's store be a stand-in."""
    def have(was_there=False):
        def make(kind, directory):
            assert kind == 'rbd' and directory == house.home.parent
            return FakeCeph(house.did, was_there)

        monkeypatch.setattr(demo.stores, 'make', make)

    return have


def test_ceph_is_up_before_the_cloud_and_ends_after_it(house, ceph):
    ceph()
    assert house.start('--store', 'rbd') == 0
    assert house.did == ['Ceph up', 'up', 'run', 'down wipe=True', 'Ceph down']


def test_ceph_is_kept_with_the_cloud(house, ceph, capsys):
    ceph()
    assert house.start('--store', 'rbd', '--keep') == 0
    assert house.did == ['Ceph up', 'up', 'run'] and 'CEPH_CONF' in capsys.readouterr().out


@pytest.mark.parametrize('was_there', [False, True])
def test_beside_somebody_elses_cloud_only_what_came_up_with_this_demo_ends(house, ceph, was_there):
    house.home.mkdir()
    house.refused = True
    ceph(was_there)
    assert house.start('--store', 'rbd') == 1
    assert house.did == ['Ceph up', 'up', *([] if was_there else ['Ceph down'])]


def test_what_is_promised_of_snapshots():
    from tools.demo.snapshots import BOOTCACHE, STOCK, Snapshot, broken_promises, lines

    stock = Snapshot(STOCK, 30.0, 700_000_000, 700_000_000, True)
    ours = Snapshot(BOOTCACHE, 3.0, 40_000_000, 50_000_000, True)
    assert broken_promises([]) == broken_promises([stock, ours]) == []
    assert lines([ours]) == ['snapshot, bootcache: 3.0 s, 40.0 MB sent, 50.0 MB stored']
    wrong = dataclasses.replace(ours, network_bytes=200_000_000, identical=False)
    content, sent = broken_promises([stock, wrong])
    assert 'content' in content and '200000000 bytes were sent' in sent
