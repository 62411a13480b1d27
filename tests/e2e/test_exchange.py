"""Two hosts that exchange: what comes to the second one comes from the first, by their counts."""

import functools
import shutil
import sys

import pytest

from bootcache import exception
from bootcache.exchange.client import ExchangeClient
from bootcache.rpc.messages import ImageHosts
from tools.cloud.bootcache import STORAGE_SERVICE, UNITS
from tools.cloud.layout import GLANCE, NOVA
from tools.cloud.services import confined
from tools.cloud.tenant import wait_until

pytest.importorskip('libtorrent')

PORT = 10821
NETWORK = '127.0.8.0/24'
EXCHANGE_UNIT = UNITS / 'bootcache-exchange.service'


class Member:
    """The exchange of a host or of the storage node.

    :param service: whose it is; its certificates have that name, or ``certificates``.
    """

    def __init__(self, cloud, service, certificates, number):
        self.service, self.address = service, f'127.0.8.{number}'
        self.name = f'{service}-exchange'
        home = cloud.home / self.name
        self.options = {'exchange_address': self.address, 'exchange_port': PORT,
                        'exchange_networks': NETWORK, 'exchange_socket': home / 'control.sock',
                        'exchange_rack': 'one'}
        self.client = ExchangeClient(str(home / 'control.sock'))
        home.mkdir(exist_ok=True)
        user = GLANCE if service == STORAGE_SERVICE else NOVA
        shutil.chown(home, user)
        own = home / 'exchange.conf'
        own.write_text('[bootcache]\n' + ''.join(
            f'{name} = {value}\n' for name, value in
            {**self.options, 'tls_directory': cloud.certificates / certificates}.items()))
        cloud.add_service(self.name, [*confined(cloud.layout, user, EXCHANGE_UNIT),
                                      sys.executable, '-W', 'ignore', '-m',
                                      'bootcache.exchange.daemon', '--config-file', str(own)],
                          ready=functools.partial(answers, self.client))

    def files(self, size):
        """What it tells of its files of that size."""
        return [file for file in self.client.files()['files'].values() if file['size'] == size]


def answers(client):
    try:
        return client.files() is not None
    except exception.ExchangeFailed:
        return False


@pytest.fixture(scope='module')
def members(cloud):
    """The storage node's exchange, and that of each host."""
    made = [Member(cloud, STORAGE_SERVICE, STORAGE_SERVICE, 1),
            *(Member(cloud, host.compute, host.hostname, number)
              for number, host in enumerate(cloud.hosts, 2))]
    services = [member.service for member in made]
    for member in made:
        cloud.start(member.name)
        cloud.layer(member.service, '85-exchange', {'bootcache': member.options})
    with cloud.hosts_heard():
        cloud.restart(*services)
    yield made
    for member in made:
        cloud.layer(member.service, '85-exchange', None)
    with cloud.hosts_heard():
        cloud.restart(*services)
    for member in made:
        cloud.stop(member.name)


# On a machine that does not come to it for seconds a fetch stalls, and is copied instead.
TRIES = 4


def test_the_second_host_gets_cache_image_and_full_base_from_the_first(tenant, small_image, cloud,
                                                                       members):
    storage, first, second = members
    names = [host.hostname for host in cloud.hosts]
    for _number in range(TRIES):
        image, sizes = on_both_hosts(tenant, small_image, cloud)
        told = {(came['file'], came['to']): came for came in
                wait_until(lambda image=image: told_of(tenant, image, 4), 'what hosts tell')}
        if all(came['way'] == 'exchanged' for came in told.values()):
            break
        tenant.clean_servers()
        tenant.delete_image(image)
    for what, size in sizes.items():
        came = told[what, names[1]]
        assert came['way'] == 'exchanged' and not came['copied'] and came['size'] == size
        assert dict(came['got'])[names[0]] > 0.5 * size, came
        held = [file for file in second.files(size) if file['got'] > 0.9 * size
                and file['peers'].get(first.address, {'got': 0})['got'] > 0.5 * size]
        assert held, (what, second.files(size))
        assert any(0 < file['given'] <= 1.5 * size for file in storage.files(size)), what


def on_both_hosts(tenant, file, cloud):
    """Have a server boot and settle on one host after the other; the image, and its files' sizes.
    """
    image = tenant.image(file, bootcache_settle='yes')
    found = tenant.wait_state(image, 'ready')
    for number, host in enumerate(cloud.hosts, 1):
        server = tenant.server(image, host=host)
        tenant.login(server)
        wait_until(lambda server=server: '/_base/' in tenant.backing(server)[1],
                   f'{server} settles')
        tenant.command(server, 'check-all')
        # What it has told by then it gives to the next one.
        wait_until(lambda number=number: told_of(tenant, image, 2 * number), 'what it tells')
    return image, {'cache image': found['cache_image']['bytes'], 'full base': found['stored_bytes']}


def told_of(tenant, image, count):
    told = tenant.storage_client.send(ImageHosts(image))['exchanged']
    return told if len(told) == count else None
