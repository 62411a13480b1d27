"""A thousand exporters of single hosts: whom a round of upkeep asks, and whom it waits for.

The daemons are stand-ins that count who is asked; tests/functional/test_own_exporters.py and
test_exporters_apart.py have real ones.
"""

import collections
import contextlib
import json
import threading
import time
from concurrent import futures

import pytest

from bootcache import exception, naming
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache.storage import exporter, exporters
from glance_bootcache.storage.exporters import MOST_LOOKS, Exporters

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
BASE = f'base-{IMAGE}'
NODE = naming.node_name('b', f'{IMAGE} ')
NEEDED = {IMAGE: ()}
HOSTS = 1000


class Machine:
    """Daemons, by name, with what each serves; ``asked`` counts the sessions with each."""

    def __init__(self):
        self.running = {}
        self.asked = collections.Counter()
        self.hanging = set()
        self.goes_on = threading.Event()
        self.credentials = {}

    def daemon(self, name, *_arguments, **_named):
        return Daemon(self, name)


class Monitor:
    @staticmethod
    def alone():
        return contextlib.nullcontext()


class Daemon:
    """As StorageDaemon."""

    def __init__(self, machine, name):
        self._machine, self.name = machine, name
        self.monitor, self.listener = Monitor(), name
        self.log_path, self.pid_path = f'/nowhere/{name}.log', f'/nowhere/{name}.pid'
        self._sessions = 0

    @property
    def runs(self):
        return self.name in self._machine.running

    def pid(self):
        return id(self._machine.running[self.name]) if self.runs else None

    def answers(self):
        return self.runs

    def has_listener(self):
        return True

    @contextlib.contextmanager
    def session(self):
        if not self._sessions:
            self._machine.asked[self.name] += 1
        if self.name in self._machine.hanging:
            self._machine.goes_on.wait()
            raise exception.StorageDaemonBusy(f'{self.name}: no answer')
        self._sessions += 1
        yield self
        self._sessions -= 1

    def exports(self):
        with self.session():
            return dict(self._machine.running[self.name])

    def credentials(self):
        return self._machine.credentials.get(self.name, set())

    def nodes(self):
        return set()

    def remove_nodes(self, *names):
        assert not names

    def add_nodes(self, *nodes):
        assert nodes

    def add_export(self, export, node, _writable):
        self._machine.running[self.name][export] = node

    def remove_export(self, export, disconnect):
        return self._machine.running[self.name].pop(export) is not None

    def ensure_running(self):
        self._machine.running.setdefault(self.name, {})

    def stop(self):
        self._machine.running.pop(self.name, None)
        self._machine.credentials.pop(self.name, None)


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(exporter, 'StorageDaemon', machine.daemon)
    yield machine
    machine.goes_on.set()


@pytest.fixture
def cloud(machine, storage_conf, tmp_path, monkeypatch):
    """The exporters of all hosts, each with a base; an earlier process has started them."""
    storage_conf.set_override('export_ports', f'20000-{20000 + HOSTS - 1}', 'bootcache')
    path = tmp_path / 'clients.json'
    path.write_text(json.dumps({'version': 1, 'clients': {
        f'CN=host-{number}': {'port': 20000 + number, 'hosts': {f'host-{number}': time.time()}}
        for number in range(HOSTS)}}))
    cloud = Exporters(storage_conf, str(path))
    monkeypatch.setattr(cloud._clones, 'start', lambda: None)
    for number in range(HOSTS):
        machine.running[f'exporter-{20000 + number}'] = {BASE: NODE}
    return cloud


@pytest.fixture
def known(cloud, machine):
    """The same, a round later."""
    cloud.start()
    assert machine.asked == dict.fromkeys(machine.running, 1) and not cloud.untold()
    machine.asked.clear()
    return cloud


def test_a_round_asks_a_bounded_number_and_all_have_their_turn(known, machine):
    for number in range(1, HOSTS // MOST_LOOKS + 1):
        known.start()
        assert machine.asked.total() == number * MOST_LOOKS
    assert machine.asked == dict.fromkeys(machine.running, 1)


def test_one_whose_host_has_asked_is_looked_at_in_the_next_round(known, machine):
    known.start()
    seen = next(iter(machine.asked))
    for number in seen.partition('-')[2], '20999':
        name = f'host-{int(number) - 20000}'
        known.know(name, f'CN={name}')
    machine.asked.clear()
    known.start()
    assert machine.asked[seen] == machine.asked['exporter-20999'] == 1
    assert machine.asked.total() == MOST_LOOKS + 2
    # That was once.
    machine.asked.clear()
    known.start()
    assert not machine.asked[seen] and machine.asked.total() == MOST_LOOKS


def test_all_others_have_their_turn_while_all_hosts_ask(known, machine):
    """As in a storm of boots, which may last for long."""
    asked = set()
    for _round in range(HOSTS // MOST_LOOKS):
        for number in range(HOSTS // 2):
            known.know(f'host-{number}', f'CN=host-{number}')
        machine.asked.clear()
        known.start()
        assert machine.asked.total() <= 2 * MOST_LOOKS
        asked |= set(machine.asked)
    assert asked >= {f'exporter-{20000 + number}' for number in range(HOSTS // 2, HOSTS)}


def test_what_hosts_need_is_served_and_kept_without_asking_who_serves_it(known, machine):
    everybody = {f'CN=host-{number}' for number in range(HOSTS)}
    manifest = Manifest(IMAGE, Standing.DONE, made=Made(base_export=BASE))
    known.ensure(manifest, None, everybody)
    known.withdraw_idle({IMAGE: everybody}, -1)
    known.end_unused(-1)
    assert not machine.asked and len(machine.running) == HOSTS


def test_what_one_host_needs_no_more_goes_there_alone(known, machine):
    others = {f'CN=host-{number}' for number in range(1, HOSTS)}
    known.withdraw_idle({IMAGE: others}, -1)
    known.end_unused(-1)
    assert len(machine.running) == HOSTS - 1 and 'exporter-20000' not in machine.running
    assert set(machine.asked) == {'exporter-20000'}
    # What is in hand is not named, and stays.
    known.withdraw_idle({}, -1)
    assert len(machine.running) == HOSTS - 1


def test_one_that_has_died_is_started_for_what_its_host_needs(known, machine, tmp_path):
    """By the next round, however many others there are."""
    del machine.running['exporter-20007']
    path = tmp_path / 'base'
    path.write_bytes(bytes(512))
    manifest = Manifest(IMAGE, Standing.DONE, made=Made(
        image_format='raw', virtual_bytes=512, base_path=str(path), base_export=BASE))
    assert not known.untold()
    known.ensure(manifest, None, {f'CN=host-{number}' for number in range(HOSTS)})
    assert set(machine.running['exporter-20007']) == {BASE}
    assert set(machine.asked) == {'exporter-20007'}


def test_renewed_certificates_are_seen_in_turn(known, machine):
    """Each serves again what it served."""
    machine.credentials = {name: {'tls-earlier'} for name in machine.running}
    again = []

    def serve(exports, certificate):
        assert exports == (BASE,)
        again.append(certificate)

    for _round in range(HOSTS // MOST_LOOKS):
        known.start(serve)
    assert sorted(again) == sorted(f'CN=host-{number}' for number in range(HOSTS))
    assert not machine.running


def test_nobody_waits_for_those_that_hang(cloud, machine, monkeypatch):
    """They are the first that are looked at, and more than are looked at side by side."""
    monkeypatch.setattr(exporters, '_ROUND_SECONDS', 0.5)
    machine.hanging = {f'exporter-{20000 + number}' for number in range(10)}
    hang = {f'CN=host-{number}' for number in range(10)}
    for _round in range(100):
        cloud.start()
        if cloud.untold() == hang:
            break
    assert cloud.untold() == hang
    cloud.check(each=False)
    with pytest.raises(exception.StorageDaemonError, match='10 exporters of single hosts'):
        cloud.check()
    # Nor for what they serve.
    cloud.withdraw_idle(NEEDED, 3600)
    cloud.end_unused(-1)
    assert len(machine.running) == HOSTS
    machine.goes_on.set()
    machine.hanging = set()
    for _round in range(100):
        cloud.start()
        if not cloud.untold():
            break
    assert not cloud.untold()


def test_where_no_exporter_answers_the_node_does_not_work(cloud, machine, monkeypatch):
    monkeypatch.setattr(exporters, '_ROUND_SECONDS', 0.1)
    for number in range(10, HOSTS):
        del machine.running[f'exporter-{20000 + number}']
    machine.hanging = set(machine.running)
    cloud.start()
    with pytest.raises(exception.StorageDaemonError, match='10 exporters of single hosts'):
        cloud.check(each=False)
    machine.goes_on.set()


MANIFEST = Manifest(IMAGE, Standing.DONE, made=Made(base_export=naming.export_name(
    naming.EXPORT_BASE, IMAGE)))


def test_bases_are_open_that_any_exporter_serves(known, machine, monkeypatch):
    kept = []
    monkeypatch.setattr(known._clones, 'keep', lambda served, may_end: kept.append(
        ([manifest.image_id for manifest in served], may_end)))
    other = IMAGE.replace('7', '8')
    manifests = [Manifest(image_id, Standing.DONE, made=Made(
        base_export=naming.export_name(naming.EXPORT_BASE, image_id)))
        for image_id in (IMAGE, other)]
    known.keep_open(manifests)
    machine.running.clear()
    known.keep_open(manifests)
    machine.running['exporter-20000'] = {BASE: NODE}
    known.keep_open(manifests)
    assert kept[:2] == [([IMAGE], True), ([], True)] and not kept[2][1], 'it has not told yet'


def test_none_is_closed_while_a_base_is_served_that_the_database_does_not_have(known, monkeypatch):
    may_end = []
    monkeypatch.setattr(known._clones, 'keep', lambda served, ends: may_end.append(ends))
    known.keep_open([])
    known.keep_open([MANIFEST])
    assert may_end == [False, True]


def test_none_is_closed_while_a_base_is_read_that_was_got_again(known, monkeypatch, tmp_path):
    """A host is connected, or the database is an older state: the row has another clone, or none.
    """
    may_end, recorded = [], []
    monkeypatch.setattr(known._clones, 'keep', lambda served, ends: may_end.append(ends))
    monkeypatch.setattr(known._served, 'record', lambda manifest, path: recorded.append(manifest))
    (tmp_path / 'got').touch()
    for path in 'rbd:p/n/other', '/other', str(tmp_path / 'got'), '':
        manifest = MANIFEST.making(base_path=path)
        known.keep_open([manifest])
        known.ensure(manifest, None, ['CN=host-0', 'CN=host-1'])
    assert may_end == [False, False, False, True]
    assert [manifest.made.base_path for manifest in recorded] == [str(tmp_path / 'got'), '']


def test_none_is_closed_while_an_exporter_is_to_serve_again_what_it_served(
        known, machine, monkeypatch):
    """As where Ceph is slow to open it: the round does not wait for that."""
    monkeypatch.setattr(exporters, '_ROUND_SECONDS', 0.5)
    machine.credentials = {'exporter-20000': {'tls-earlier'}}
    begun, may_end, goes_on = threading.Event(), [], threading.Event()
    monkeypatch.setattr(known._clones, 'keep', lambda served, ends: may_end.append(ends))

    def serve(_exports, _certificate):
        begun.set()
        assert goes_on.wait(60)

    known.know('host-0', 'CN=host-0')
    for _round in range(2):
        known.start(serve)
        assert begun.is_set()
        known.keep_open([MANIFEST])
    goes_on.set()
    futures.wait(known._looks, 60)
    known.keep_open([MANIFEST])
    assert may_end == [False, False, True]


def test_what_exporters_of_hosts_served_they_serve_after_a_reboot(known, machine, storage_conf,
                                                                  tmp_path, monkeypatch):
    """The daemons are gone, and the database does not answer: it is in a file."""
    (tmp_path / 'base').write_text('base')
    manifest = MANIFEST.making(base_path=str(tmp_path / 'base'), image_format='raw',
                               virtual_bytes=4096)
    machine.running.clear()
    known.start()
    known.ensure(manifest, None, ['CN=host-3'])
    known.save_served()
    # One that does not tell keeps none of the others from the file, and is in it as it was.
    machine.running['exporter-20003'] = {}
    known.ensure(manifest, None, ['CN=host-7'])
    known.save_served()
    machine.running.clear()
    again = Exporters(storage_conf, str(tmp_path / 'clients.json'))
    monkeypatch.setattr(again._clones, 'start', lambda: None)
    # And again, while the database is waited for: one has ended.
    for _round in range(2):
        again.start_as_before()
        assert {name: set(served) for name, served in machine.running.items()} == {
            'exporter-20003': {BASE}, 'exporter-20007': {BASE}}
        del machine.running['exporter-20003']
    # A base that is another file by now is not served before it was hashed.
    machine.running.clear()
    (tmp_path / 'base').write_text('other')
    again.start_as_before()
    assert not any(machine.running.values())
