"""A compute host that sends everything wrong that it can, to a real service by a real RabbitMQ.

Each method and argument is tried by tests/unit/glance_bootcache/test_lies.py, and what is not true
by test_untrue_reports.py beside it.
"""

import contextlib
import hashlib
import json
import math
import random
import re
import zlib

import amqp
import kombu
import nbd
import oslo_messaging as messaging
import pytest
from functional_tools import until
from oslo_messaging import conffixture
from service_process import cloud as cloud  # a fixture
from service_process import service as service  # likewise

from bootcache import conf as bootcache_conf
from bootcache.quoting import quoted
from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import (
    VERSION,
    GetImage,
    GetWorkingSet,
    HoldingsAnswer,
    ListHosts,
    PlanBoot,
    ReportBoot,
    ReportHoldings,
)
from bootcache.rpc.report import HostReport
from bootcache.rpc.transport import EXCHANGE, TOPIC
from bootcache.workingset import MAX_EXTENTS
from glance_bootcache.rpc import messagesize

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20
SIZE = 4 * MIB
CONTENT = random.Random(17).randbytes(SIZE)
HASH = f'sha512:{hashlib.sha512(CONTENT).hexdigest()}'
FORGED = 'one\n2026-01-01 00:00:00.000 1 ERROR glance_bootcache.service [-] forged\x1b[2J'
# Beside what the service has before: a message that is too long is there twice while it comes.
MEMORY = 400 * MIB


@pytest.fixture
def images():
    """What Glance has."""
    return {IMAGE: CONTENT}


@pytest.fixture
def directory_of_service(service, directory):
    """The service serves; gives its directory."""
    service(profile_boots=False, cluster_size=4096)
    until(lambda: 'glance-bootcache serves' in said(directory), 'the service')
    return directory


def said(directory):
    with open(f'{directory}/log', errors='replace') as stream:
        return stream.read()


@pytest.fixture
def api(directory_of_service, storage_conf, rabbit, monkeypatch):
    """The client that hosts have."""
    opened = []
    real = messaging.get_rpc_transport
    monkeypatch.setattr(messaging, 'get_rpc_transport',
                        lambda *some, **named: opened.append(real(*some, **named)) or opened[-1])
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    storage_conf.set_override('rpc_timeout', 60, bootcache_conf.GROUP)
    conffixture.ConfFixture(storage_conf)
    yield StorageClient(storage_conf)
    for transport in opened:
        transport.cleanup()


@pytest.fixture
def call(api):
    """Calls what it likes; gives what the service answers, or how its error is called and said."""
    def call(method, version=VERSION, **said):
        try:
            return api._client.prepare(version=version, timeout=60).call({}, method, **said)
        except messaging.RemoteError as error:
            return error.exc_type, error.value

    return call


@pytest.fixture
def post(rabbit):
    """Puts bytes on the service's queue, as somebody does who has the password."""
    with kombu.Connection(rabbit.replace('rabbit://', 'amqp://') + '/') as connection:
        def post(body, content_type='application/json', **headers):
            # RabbitMQ 4 takes no message of more than 16 MiB itself.
            with contextlib.suppress(amqp.exceptions.PreconditionFailed), \
                    connection.channel() as channel:
                producer = kombu.Producer(channel, kombu.Exchange(
                    EXCHANGE, 'topic', passive=True, durable=False), TOPIC)
                producer.publish(body, content_type=content_type, content_encoding='utf-8',
                                 headers=headers, serializer=None)

        yield post


def envelope(**message):
    return json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(message)})


def memory(directory, name='VmRSS'):
    """Bytes of the process that serves."""
    pid = re.search(r'(\d+) INFO \S+ \[-\] glance-bootcache serves', said(directory))[1]
    with open(f'/proc/{pid}/status') as stream:
        return int(re.search(rf'{name}:\s+(\d+) kB', stream.read())[1]) * 1024


LIES = [
    ('report_use', {'host': 'liar', 'images': {IMAGE: [2e12, 'disk']}}, 'NoSuchMethod'),
    (FORGED, {}, 'NoSuchMethod'), ('target', {}, 'NoSuchMethod'),
    ('list_hosts', {FORGED: 'x' * MIB}, 'arguments'),
    ('plan_boot', {'image_id': '../../etc', 'host': 'liar', 'server_id': 's',
                   'profile_token': None}, 'image_id'),
    ('plan_boot', {'image_id': IMAGE, 'host': FORGED, 'server_id': 's', 'profile_token': None},
     'host'),
    ('plan_boot', {'image_id': IMAGE, 'host': 'x' * MIB, 'server_id': 's', 'profile_token': None},
     'host'),
    ('plan_boot', {'image_id': IMAGE, 'host': 'liar', 'server_id': 's' * MIB,
                   'profile_token': None}, 'server_id'),
    ('report_progress', {'image_id': IMAGE, 'profile_token': 't', 'recorded_bytes': math.nan},
     'recorded_bytes'),
    ('report_boot', {'image_id': IMAGE, 'image_hash': HASH, 'host': 'liar', 'granularity': 4096,
                     'extents': [[0, 1]] * (MAX_EXTENTS + 1), 'ended_by': 'marker',
                     'boot_seconds': 1}, 'extents'),
    ('report_boot', {'image_id': IMAGE, 'image_hash': HASH, 'host': 'liar', 'granularity': -4096,
                     'extents': [], 'ended_by': 'marker', 'boot_seconds': 1}, 'granularity'),
    ('report_boot', {'image_id': IMAGE, 'image_hash': HASH, 'host': 'liar', 'granularity': 4096,
                     'extents': [], 'ended_by': 'marker', 'boot_seconds': math.inf},
     'boot_seconds'),
    ('report_holdings', {'host': 'liar', 'report': {'images': {
        f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f': {}
        for number in range(100_000)}}}, 'report.images'),
    ('report_holdings', {'host': 'liar', 'report': {'needs': [IMAGE] * 100_000}}, 'report.needs'),
    ('report_warm', {'image_id': IMAGE, 'host': 'victim', 'outcome': 'molten', 'reason': ''},
     'outcome'),
    ('pin_image', {'image_id': IMAGE, 'pinned': 'yes'}, 'pinned'),
    ('evict_image', {'image_id': IMAGE, 'hosts': [FORGED]}, 'hosts'),
    ('warm_image', {'image_id': IMAGE, 'aggregates': {'a': 'b'}}, 'aggregates')]


def test_a_host_that_lies_harms_nobody(directory_of_service, api, call, post, storage_conf):
    directory = directory_of_service
    honest = until(lambda: (answer := api.send(PlanBoot(IMAGE, 'honest', 'server')))['action']
                   == 'cold' and answer, 'the base')
    assert api.send(ReportHoldings('honest', HostReport(needs=frozenset([IMAGE])))) \
        == HoldingsAnswer()

    # What has a wrong form.
    for method, arguments, field in 3 * LIES:
        kind, why = call(method, **arguments)
        assert field in (kind, why.partition(':')[0]), (quoted(method), why[:200])
        assert len(why) < 400 and why.isprintable()
    assert call('list_hosts', version=VERSION)[0]['host'] == 'honest'

    # What has the right form, and is not true.
    said_it = {'image_hash': HASH, 'host': 'liar', 'granularity': 4096, 'ended_by': 'marker',
               'boot_seconds': 1.0}
    for number in range(20):
        assert call('report_boot', image_id=IMAGE if number % 2 else OTHER,
                    extents=[[number * 4096, 4096, 0.5]], **{**said_it, 'image_hash': 'sha512:00'}
                    ) is None
        assert call('report_warm', image_id=IMAGE, host='victim', outcome='cached',
                    reason='x' * 9999) is None
        assert call('report_boot', image_id=IMAGE, extents=[], **said_it,
                    profile_token='f' * 32) is None
        call('report_holdings', host=f'made-up-{number}', report={
            'images': {IMAGE: {'last_use': 2e12, 'medium': 'memory', 'generation': 1 << 62,
                               'bytes': 1 << 62}, FORGED: {}},
            'needs': [], 'rpc': FORGED, 'certificates_end': 1e300})
    for extents in ([[SIZE, 4096]], [[-4096, 4096]], [[0, 1 << 80]], [[0, 8192], [4096, 4096]],
                    [[0, 4096, math.nan]], [['x' * MIB, FORGED]]):
        api.send(PlanBoot(IMAGE, 'liar', 'watched'))
        kind, why = call('report_boot', image_id=IMAGE, extents=extents, **said_it,
                         server_id='watched')
        assert (kind, len(why) < 400, why.isprintable()) == ('InvalidWorkingSet', True, True)

    # What is no message, or a hundred megabytes of one.
    before = memory(directory)
    numbers = '[' + ','.join(['[1,2]'] * 100) + ']'
    for _time in range(3):
        post('{"oslo.version": "2.0", "oslo.message": "' + 'x' * (100 * MIB) + '"}')
        post('[' + ','.join([numbers] * (100 * MIB // len(numbers))) + ']')
        post(zlib.compress(b' ' * (1 << 30)), compression='application/x-gzip')
    post(envelope(method='plan_boot', args='x', version=VERSION))
    post(envelope(method=5, args={}, version=FORGED))
    post(envelope(method='list_hosts', args={}, version=VERSION, _timeout='x' * MIB))
    until(lambda: api.send(ListHosts()) and said(directory).count('it has too many bytes') == 1,
          'what was posted')
    assert memory(directory, 'VmHWM') < before + MEMORY

    # The honest host is as it was, and what it reports is what is built.
    assert api.send(ReportHoldings('honest', None)) == HoldingsAnswer()
    assert api.send(GetImage(IMAGE))['state'] == 'served', 'of all of that nothing was learned'
    extents = [[MIB, 65536, 0.0], [0, 65536, 0.5]]
    api.send(ReportBoot(IMAGE, honest['image_hash'], 'honest', 4096, extents, 'marker', 2.5,
                        server_id='server'))
    until(lambda: api.send(GetImage(IMAGE))['state'] == 'ready', 'the cache image')
    assert api.send(GetWorkingSet(IMAGE))['extents'] == extents
    answer = api.send(PlanBoot(IMAGE, 'honest', 'server'))
    assert answer['action'] == 'cache'
    assert [read(answer, answer['base_export'], offset, length) for offset, length, _when in extents
            ] == [CONTENT[offset:offset + length] for offset, length, _when in extents]
    info = answer['cache_image']
    cached = read(answer, answer['cache_export'], 0, info['bytes'])
    assert hashlib.sha256(cached).hexdigest() == info['sha256']
    # All of it was told, each host and reason once, in lines of its own.
    log = said(directory)
    assert 'Traceback' not in log and '\x1b' not in log and 'x' * 200 not in log
    assert not re.search(r'^2026-01-01 00:00:00', log, re.MULTILINE)
    told = re.findall(r'\[-\] (.+?) is (?:refused|not looked at, [^:]+): (\S+):', log)
    assert len(told) == len(set(told)) and {field for _who, field in told} >= {
        'image_id', 'host', 'extents', 'granularity', 'report.images', 'report.images.used',
        'report.certificates_end',
        'outcome', 'profile_token', 'message', 'arguments', 'timeout', 'version'}


def read(answer, export, offset, length):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_tcp(answer['server'][0], str(answer['server'][1]))
    try:
        return bytes(handle.pread(length, offset))
    finally:
        handle.shutdown()


@pytest.mark.parametrize('compression', ['gzip', 'bzip2', 'lzma'])
def test_what_is_compressed_is_read_and_a_bomb_is_not(compression):
    """As hosts send it that have ``kombu_compression``."""
    messagesize.register_bounds()
    try:
        body, content_type = kombu.compression.compress(b'{"a": [1]}', compression)
        read = messagesize.BoundedReader().read
        assert read(kombu.compression.decompress(body, content_type)) == {'a': [1]}
        bomb, content_type = kombu.compression.compress(b' ' * (64 * MIB), compression)
        opened = kombu.compression.decompress(bomb, content_type)
        assert len(opened) == messagesize.LONGEST_BYTES + 1
        assert 'too many bytes' in read(opened)['oslo.message']
    finally:
        kombu.serialization.register_json()
