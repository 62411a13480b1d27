"""Which hosts have exporters of their own, and at which ports."""

import dataclasses
import hashlib
import json
import threading
from concurrent import futures

import pytest

from bootcache import exception, savefile
from glance_bootcache.storage import admission, clients
from glance_bootcache.storage.clients import Client, Clients

ONE, TWO, THREE = 'CN=compute-1', 'CN=compute-2', 'CN=compute-3'
DAY = 86400
COLLISION = 'CN=compute-118269', 'CN=compute-118903'


@dataclasses.dataclass
class Clock:
    now: float = 1e9

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def known(tmp_path, clock):
    return Clients(str(tmp_path / 'clients.json'), range(5, 7), clock)


def nobody(_client):
    return False


def everybody(_client):
    return True


@pytest.mark.parametrize('text, ports', [
    (None, range(0)), ('', range(0)), ('5-7', range(5, 8)), ('65535-65535', range(65535, 65536))])
def test_ports_are_read(text, ports):
    assert clients.read_ports(text) == ports


@pytest.mark.parametrize('text', ['5', '7-5', '0-5', '5-65536', '5-7,9-10', 'a-b', '-5-7', '5-'])
def test_what_is_no_range_of_ports_is_refused(text):
    with pytest.raises(ValueError):
        clients.read_ports(text)


def test_a_client_keeps_its_port_over_a_restart(tmp_path, clock, known):
    assert known.note('host-1', ONE) == Client(ONE, 5)
    assert known.note('host-2', TWO) == Client(TWO, 6)
    assert known.note('host-1', ONE) == Client(ONE, 5) == known.find(ONE)
    known.save()
    later = Clients(str(tmp_path / 'clients.json'), range(5, 7), clock)
    assert later.all() == [Client(ONE, 5), Client(TWO, 6)]
    assert later.of(['host-2']) == {TWO}
    # A change is written at once, and that hosts ask each hour.
    written = (tmp_path / 'clients.json').stat().st_mtime_ns
    later.note('host-1', ONE)
    later.save()
    assert (tmp_path / 'clients.json').stat().st_mtime_ns == written
    clock.now += 3600
    later.save()
    assert (tmp_path / 'clients.json').stat().st_mtime_ns != written


@pytest.mark.parametrize('text', [
    '', '{}', '{"version": 2, "clients": {}}', '{"version": 1, "clients": {"CN=a": {"port": 5}}}',
    '{"version": 1, "clients": {"CN=a": {"port": 5, "hosts": {}}, "CN=b": {"port": 5,'
    ' "hosts": {}}}}', '{"version": 1, "clients": {"CN=a": {"port": 5, "hosts": {"a": NaN}}}}'])
def test_a_damaged_file_counts_as_empty(tmp_path, clock, text, caplog):
    (tmp_path / 'clients.json').write_text(text)
    assert Clients(str(tmp_path / 'clients.json'), range(5, 7), clock).all() == []
    assert 'cannot be used' in caplog.text


def test_who_has_a_port_keeps_it_whoever_comes(known, clock):
    """Names cost nothing: also while the exporter of one that has a port rests, or has crashed."""
    known.note('host-1', ONE)
    clock.now += 6 * DAY
    known.note('host-2', TWO)
    for number in range(10):
        with pytest.raises(exception.StorageDaemonError, match='export_ports, 5 to 6'):
            known.note('host-3', f'CN=made-up-{number}')
    known.drop(nobody)
    assert known.note('host-1', ONE) == Client(ONE, 5) and known.find(TWO) == Client(TWO, 6)
    clock.now += 7 * DAY + 1
    known.note('host-2', TWO)
    known.drop(nobody)
    assert known.note('host-3', THREE) == Client(THREE, 5) and known.of(['host-1']) == set()


def test_a_host_whose_servers_run_is_known_though_it_asks_for_nothing(known, clock):
    known.note('host-1', ONE)
    known.note('host-2', TWO)
    for _day in range(3):
        clock.now += DAY
        assert known.of(['host-1']) == {ONE}
    # Nobody else is served by that what one needs of whom no certificate came.
    assert known.of(['host-1', 'host-3']) == {ONE} and known.of(['host-3']) == set()


def test_an_outage_or_a_step_of_the_clock_ends_no_isolation(tmp_path, clock, known):
    known.note('host-1', ONE)
    known.save()
    for days in 1.1, 30, -60:
        clock.now += days * DAY
        assert Clients(str(tmp_path / 'clients.json'), range(5, 7), clock).of(['host-1']) == {ONE}


def test_a_certificate_that_another_has_replaced_in_a_host_s_name_counts_for_a_day(known, clock):
    """Of a host that needs nothing meanwhile."""
    known.note('host-1', ONE)
    clock.now += DAY / 2
    known.note('host-1', TWO)
    clock.now += DAY + 1
    known.note('host-1', TWO)
    assert known.of(['host-1']) == {TWO}


def test_who_speaks_in_a_host_s_name_takes_nothing_from_it(known, clock):
    """Neither at once, nor in the weeks in which its servers run and it asks for nothing."""
    known.note('host-1', ONE)
    clock.now += 1
    known.note('host-1', TWO)
    for _hour in range(15 * 24):
        clock.now += 3600
        assert known.of(['host-1']) == {ONE, TWO}
    known.drop(nobody)
    assert known.find(ONE) == Client(ONE, 5) and known.of(['host-1']) == {ONE, TWO}


def test_one_certificate_of_many_hosts_is_one_client(tmp_path, known, clock):
    """Names that are made up with it push out none of them; in a week they are forgotten."""
    for number in range(1000):
        assert known.note(f'host-{number}', ONE).port == 5
        clock.now += 1
    with pytest.raises(exception.MessageRefused, match='1000 other hosts'):
        known.note('host-1000', ONE)
    assert known.of(['host-0']) == {ONE} and known.of(['host-1000']) == set()
    known.note('host-999', ONE)
    clock.now += 7 * DAY - 500
    assert known.of(['host-999']) == {ONE}
    known.note('host-1000', ONE)
    known.save()
    written = json.loads((tmp_path / 'clients.json').read_text())
    assert len(written['clients'][ONE]['hosts']) == 1000
    assert 'host-1' not in written['clients'][ONE]['hosts']
    assert known.of(['host-0', 'host-999', 'host-1000']) == {ONE}


def test_who_is_forgotten_is_none_of_its_hosts(tmp_path, clock, known):
    known.note('host-1', ONE)
    known.note('host-1', TWO)
    known.note('host-2', TWO)
    assert known.of(['host-1', 'host-2']) == {ONE, TWO}
    clock.now += 7 * DAY + 1
    known.note('host-1', TWO)
    known.drop(nobody)
    assert known.of(['host-1']) == known.of(['host-2']) == {TWO}
    known.save()
    later = Clients(str(tmp_path / 'clients.json'), range(5, 7), clock)
    later.note('host-1', THREE)
    assert later.of(['host-1']) == {TWO, THREE} and later.of(['host-3']) == set()


def test_ports_that_are_none_any_more_are_kept_while_their_exporters_run(tmp_path, clock, known):
    known.note('host-1', ONE)
    known.save()
    later = Clients(str(tmp_path / 'clients.json'), range(0), clock)
    later.drop(everybody)
    assert later.all() == [Client(ONE, 5)]
    later.drop(nobody)
    assert later.all() == []


def test_who_has_not_asked_for_a_week_has_left(known, clock):
    known.note('host-1', ONE)
    clock.now += 6 * DAY
    known.note('host-2', TWO)
    known.drop(nobody)
    assert known.all() == [Client(ONE, 5), Client(TWO, 6)]
    clock.now += 2 * DAY
    known.drop(everybody)
    assert known.find(ONE), 'its exporter runs: its servers read'
    known.drop(nobody)
    assert known.all() == [Client(TWO, 6)]


def test_a_file_that_cannot_be_written_is_written_later(tmp_path, clock):
    path = tmp_path / 'missing' / 'clients.json'
    known = Clients(str(path), range(5, 7), clock)
    known.note('host-1', ONE)
    with pytest.raises(OSError):
        known.save()
    path.parent.mkdir()
    known.save()
    assert path.exists()


def test_what_many_hosts_change_while_the_file_is_written_is_written_once(
        tmp_path, clock, monkeypatch):
    known = Clients(str(tmp_path / 'clients.json'), range(5, 105), clock)
    write, begun, goes_on, written = savefile.write_json, threading.Event(), threading.Event(), []

    def waits(path, document):
        written.append(len(document['clients']))
        begun.set()
        assert goes_on.wait(60)
        write(path, document)

    monkeypatch.setattr(savefile, 'write_json', waits)
    noted = threading.Semaphore(0)

    def asks(number):
        known.note(f'host-{number}', f'CN=compute-{number}')
        noted.release()
        known.save()
        return json.loads((tmp_path / 'clients.json').read_text())['clients'].keys()

    with futures.ThreadPoolExecutor(21) as hosts:
        first = hosts.submit(asks, 0)
        assert begun.wait(60)
        others = [hosts.submit(asks, number) for number in range(1, 21)]
        for _host in range(21):
            assert noted.acquire(timeout=60)
        goes_on.set()
        assert first.result() >= {'CN=compute-0'}
        # No host is answered whose port would be forgotten.
        assert all(len(other.result()) == 21 for other in others)
    assert written == [1, 21]


def test_daemons_have_names_of_their_own(known):
    """Also of certificates whose digests begin alike: whoever has a CA finds such in a minute."""
    assert len({hashlib.sha256(name.encode()).hexdigest()[:8] for name in COLLISION}) == 1
    clients = [known.note(f'host-{name}', name) for name in COLLISION]
    assert clients[0].daemon != clients[1].daemon and clients == known.all()


@pytest.mark.parametrize('certificate, names, is_named', [
    (ONE, (), True), (ONE, ('CN=compute-?',), True), (ONE, ('CN=other', 'CN=*-1'), True),
    (ONE, ('CN=compute-?',), True), (ONE, ('compute-1',), False), (ONE, ('CN=other',), False),
    ('CN=compute-1,O=Example', ('CN=compute-1',), False), ('CNxcompute', ('CN.compute',), False)])
def test_who_is_not_named_has_none(certificate, names, is_named):
    assert admission.is_named(certificate, names) is is_named
