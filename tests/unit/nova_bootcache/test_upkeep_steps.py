"""Upkeep: each step by itself, what is said of it, and entries of an earlier version."""


import pytest
from fakes_upkeep import IMAGE, OTHER, looks, offered, times_of, upkeep_of
from fakes_upkeep import clock as clock  # the fixture
from fakes_upkeep import host as host  # the fixture

from bootcache import certificates
from bootcache.rpc import messages
from glance_bootcache.smallca import SmallCA
from nova_bootcache.gateway.socketfault import GatewaySocket

# What the storage service hears.

def test_holdings_are_told_at_intervals(host, clock):
    keeper = upkeep_of(host)
    told = times_of(clock, keeper.exchange_holdings, host.holdings.told, 30)
    assert told == [0, 60, 120, 180, 240]


# Certificates.

def test_the_host_s_certificate_is_told_of_before_it_ends(host, clock, tmp_path, caplog):
    directory = SmallCA(str(tmp_path / 'ca')).issue('compute-1', days=9)
    host.expiry = certificates.Expiry(directory, ['client-cert.pem'])
    keeper = upkeep_of(host)
    for _time in range(3):
        keeper.once()
    assert sum(f'{directory}/client-cert.pem ends on ' in line for line in caplog.messages) == 1


# The gateway's socket.

def test_a_socket_that_qemu_was_denied_is_tried_again_once_it_is_mended(host, clock, tmp_path):
    path = tmp_path / 's'
    path.touch()
    socket = host.serving.socket = GatewaySocket(str(path), str(tmp_path / 'cache'))

    def start():
        if not socket.reason_for('server-1'):
            raise RuntimeError(f'Failed to connect to \'{path}\': Permission denied')

    socket.start('server-1', start, lambda: True)
    keeper = upkeep_of(host)
    keeper.once()
    assert socket.reason
    path.chmod(0o666)
    keeper.once()
    assert socket.reason == ''


# All of it.

WORDS = {'start': 'the gateway is not ready', 'left over': 'what nobody needs stays in the gateway',
         'present': 'bases are not ', 'access': 'bases are not read as they could be',
         'useless': 'of no more use stay',
         'space': 'space that growing stores do not need',
         'expand': 'compressed cache images are not expanded',
         'reports': 'what boots read is not told', 'bus': 'is not told what is here',
         'fetch': 'its empty cache image stays', 'ensure_base': 'cannot serve its base'}


@pytest.mark.parametrize('broken', WORDS)
def test_what_fails_keeps_nothing_else_from_being_done(host, clock, broken, caplog):
    host.cache.holds(IMAGE, whole=False)
    host.cache.holds(OTHER)
    host.storage.answers = {IMAGE: offered()}
    host.faults.broken = {broken}
    upkeep_of(host).once()
    assert (OTHER in host.gateway.exported) == (broken not in ('present', 'ensure_base'))
    assert bool(host.fetches.fetched) == (broken != 'fetch')
    assert bool(host.holdings.told) == (broken != 'bus')
    everything = {'reconciled', 'access', 'dropped', 'gave back', 'expanded', 'told'}
    assert set(host.done) == everything - {
        'left over': {'reconciled'}, 'present': {'access'}, 'access': {'access'},
        'useless': {'dropped'}, 'space': {'gave back'}, 'expand': {'expanded'},
        'reports': {'told'}}.get(broken, set())
    # In words of its own.
    texts = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    assert texts and all(WORDS[broken] in text and 'does not answer' in text for text in texts)


def test_a_fault_of_ours_ends_no_upkeep(host, clock, monkeypatch, caplog):
    host.cache.holds(IMAGE)
    monkeypatch.setattr(host.gateway, 'present', lambda _images: {}[''])
    upkeep_of(host).once()
    assert host.holdings.told and 'unexpected' in caplog.text


def test_a_host_that_serves_nothing_changes_no_file_and_serves_who_is_there(host, clock):
    """Its directories may be another host's as well."""
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers = {IMAGE: offered()}
    host.serving.refusal = 'nfs'
    upkeep_of(host).once()
    assert host.gateway.exported == {IMAGE} and host.storage.asked == host.holdings.told == []


def test_stores_are_looked_after_each_time(host, clock):
    """A gateway may have been restarted by whoever it was, systemd for instance."""
    keeper = upkeep_of(host)
    keeper.once()
    keeper.once()
    assert host.done == ['reconciled', 'access', 'dropped', 'gave back', 'expanded', 'told'] * 2


def test_what_the_gateway_serves_is_what_is_to_be_read(host, clock):
    host.cache.holds(IMAGE)
    host.cache.holds(OTHER)
    host.needs.needed = {OTHER}
    upkeep_of(host).once()
    assert host.connections.wanted == {f'base-{OTHER}': host.cache.held[OTHER].remote}


# What is said of it.

def lines(caplog):
    """What was logged since the last look: level and text."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records
             if record.levelname in ('INFO', 'WARNING', 'ERROR')]
    caplog.clear()
    return found


def test_one_line_says_that_all_is_well(host, clock, caplog):
    caplog.set_level('INFO')
    kept = upkeep_of(host)
    for _second in looks(clock, kept.once, 20):
        pass
    ((level, line),) = lines(caplog)
    assert level == 'INFO' and ' is ready: ' in line
    for part in ('/run/bootcache/gateway.sock', 'storage service', f'{10 << 30} bytes',
                 host.cache.directory, f'speaks RPC {messages.VERSION}'):
        assert part in line


def test_a_gateway_that_is_away_is_told_once_and_seldom_and_when_it_is_back(host, clock, caplog):
    caplog.set_level('INFO')
    kept = upkeep_of(host)
    host.cache.holds(IMAGE)
    # What cannot be done without it is told of in one line, with the cure.
    host.faults.broken = {'start', 'present', 'left over', 'access'}
    for _second in looks(clock, kept.once, 100):
        pass
    assert lines(caplog) == [
        ('WARNING', 'bootcache: the gateway is not ready, for now: start does not answer')]
    for _second in looks(clock, kept.once, 100):
        pass
    assert len(lines(caplog)) == 1
    host.faults.broken = set()
    for _second in looks(clock, kept.once, 100):
        pass
    said = lines(caplog)
    assert said[0] == ('INFO', 'bootcache: the gateway answers again')
    assert sum(' is ready: ' in line for _level, line in said) == 1


def test_a_storage_service_that_is_away_is_told_once_and_when_it_is_back(host, clock, caplog):
    caplog.set_level('INFO')
    kept = upkeep_of(host)
    host.holdings.away = 'no reply on topic bootcache'
    for _second in looks(clock, kept.once, 60):
        pass
    ((level, line),) = lines(caplog)
    assert level == 'WARNING' and 'no reply on topic bootcache' in line and 'stock way' in line
    host.holdings.away = ''
    for _second in looks(clock, kept.once, 60):
        pass
    assert [' is ready: ' in line for _level, line in lines(caplog)] == [True]
