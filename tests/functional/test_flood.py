"""One compute host floods a real service by a real RabbitMQ; the others are answered meanwhile.

Whose messages are counted how is in tests/unit/glance_bootcache/test_rates.py.
"""

import collections
import concurrent.futures
import json

import oslo_messaging as messaging
import test_lying_host as lying_host
from functional_tools import until
from service_process import cloud as cloud  # a fixture
from service_process import service as service  # likewise
from test_lying_host import api as api  # likewise
from test_lying_host import directory_of_service as directory_of_service  # likewise
from test_lying_host import images as images  # likewise
from test_lying_host import post as post  # likewise

from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import VERSION, ListHosts, PlanBoot, ReportWarm, WarmOutcome
from glance_bootcache.rpc import ratelimit

IMAGE, MIB = lying_host.IMAGE, lying_host.MIB
AT_ONCE = 16


def flood(api, host, count):
    """Call the service, and count what it answers."""
    def call(_number):
        try:
            return api.send(PlanBoot(IMAGE, host, 'server'))['action']
        except messaging.RemoteError as error:
            return error.exc_type

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return collections.Counter(pool.map(call, range(count)))


def test_a_flood_of_one_host_is_bounded_and_the_others_are_answered(
        directory_of_service, api, storage_conf):
    directory = directory_of_service
    # Another process has a secret of its own; that of a second client here is another one as well.
    liar = StorageClient(storage_conf)
    until(lambda: api.send(PlanBoot(IMAGE, 'honest', 'server'))['action'] == 'cold', 'the base')
    before = lying_host.memory(directory)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        # In the name of the other one, which takes nothing from it.
        flooding = pool.submit(flood, liar, 'honest', 6 * int(ratelimit.BURST))
        answered = collections.Counter()
        while not flooding.done():
            answered[api.send(PlanBoot(IMAGE, 'honest', 'server'))['action']] += 1
            if answered.total() == ratelimit.BURST // 2:
                break
    got = flooding.result()
    assert set(got) == {'cold', 'TooManyMessages'}, got
    assert got['TooManyMessages'] > ratelimit.BURST and got['cold'] >= ratelimit.BURST
    assert set(answered) == {'cold'} and answered.total() > 0
    log = lying_host.said(directory)
    assert log.count('too many of this sender') == 1, 'told once'
    assert 'Traceback' not in log
    # So is what asks for no answer, whatever host it names.
    for _message in range(5 * int(ratelimit.BURST)):
        liar.send(ReportWarm(IMAGE, 'caster', WarmOutcome.CACHED, ''))
    assert api.send(ListHosts()) == [] and api.send(PlanBoot(IMAGE, 'honest', 'server'))
    until(lambda: 'host caster: report_warm is refused: message: too many'
          in lying_host.said(directory), 'the refusal')
    assert lying_host.memory(directory, 'VmHWM') < before + lying_host.MEMORY


def test_a_flood_of_long_messages_is_bounded(directory_of_service, api, post):
    directory = directory_of_service
    assert api.send(ListHosts()) == []
    before = lying_host.memory(directory)
    extents = [[number * 4096, 4096, 0.5] for number in range(300_000)]
    body = lying_host.envelope(
        method='report_boot', version=VERSION, args={
            'image_id': IMAGE, 'image_hash': 'x', 'host': 'liar', 'granularity': 4096,
            'extents': extents, 'ended_by': 'marker', 'boot_seconds': 1, 'server_id': 'x'})
    assert len(json.dumps(extents)) > 6 * MIB
    for _message in range(60):
        post(body)
    until(lambda: 'too many that are as long came' in lying_host.said(directory), 'the refusal')
    assert api.send(ListHosts()) == []
    assert lying_host.memory(directory, 'VmHWM') < before + 4 * lying_host.MEMORY
