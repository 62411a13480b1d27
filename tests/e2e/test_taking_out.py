"""bootcache is taken out of a cloud that runs, by the checklist of doc/source/install.rst.

Each command of that section is run here, in its order, with this cloud's paths and names in the
page's place, or is named with what it stands for. The cloud has no systemd: services are stopped by
its own means. It shares a virtual environment with everybody who runs tests, so that the package
stays installed, but none of the cloud's services can import it any more.
"""

import re
import shlex
import subprocess
import uuid
from pathlib import Path

import pytest
from docutils import core, nodes

from bootcache import properties
from nova_bootcache.published import warmth
from tests.e2e.conftest import configure
from tools.cloud import config, records
from tools.cloud.bootcache import DRIVER, FILTER, STOCK_DRIVER, STORAGE_SERVICE, TAP, WEIGHER
from tools.cloud.client import ClientError
from tools.cloud.processes import ServiceError
from tools.cloud.tenant import Log, wait_until

PAGE = (Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'install.rst').read_text()
CONTROLLER = ('conductor', 'scheduler', 'nova-api', 'glance')
TRAIT = 'CUSTOM_BOOTCACHE'
NO_SYSTEMD = 'the cloud has no systemd'


class Page:
    """The commands of a section of the installation page, to be taken in their order."""

    def __init__(self, title):
        # Sphinx's own roles are unknown to docutils; no command is in one.
        tree = core.publish_doctree(PAGE, settings_overrides={'report_level': 5})
        section, = (section for section in tree.findall(nodes.section)
                    if section[0].astext() == title)
        self._left = [line for block in section.findall(nodes.literal_block)
                      for line in block.astext().splitlines()]

    def take(self, line, **values):
        """Return the next command, which has to be this one, with names in place of the page's."""
        assert self._left and self._left.pop(0) == line
        for name, value in values.items():
            assert name in line
            line = line.replace(name, value)
        return line

    def skip(self, reason, *lines):
        """Pass over commands that cannot be run here."""
        assert reason
        for line in lines:
            self.take(line)

    def end(self):
        """Nothing of the section was left out."""
        assert self._left == []


class Operator:
    """Runs the page's commands in this cloud."""

    def __init__(self, cloud, openstack):
        self.cloud = cloud
        self._openstack = openstack

    def openstack(self, line):
        """Run a command of the client, which may be one whose lines grep sifts."""
        line, *sieve = line.split(' | ')
        program, *arguments = shlex.split(line)
        assert program == 'openstack'
        told = self._openstack.run(*arguments)
        for command in sieve:
            told = subprocess.run(shlex.split(command), input=told, check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
        return told

    def bootcache(self, line):
        program, *arguments = shlex.split(line)
        assert program == 'bootcache'
        return self._openstack.bootcache(self.cloud.config_file, *arguments)

    def rabbitmqctl(self, line):
        program, *arguments = shlex.split(line)
        assert program == 'rabbitmqctl'
        return self.cloud.rabbitmqctl(*arguments)

    def shell(self, line):
        subprocess.run(['bash', '-ec', line], check=True, stdin=subprocess.DEVNULL)


def put_in(cloud):
    """Have all of bootcache in the cloud, whatever there is of it."""
    cloud.install_package()
    configure(cloud)
    for host in cloud.hosts:
        cloud.override(host.compute, 'DEFAULT', 'compute_driver', DRIVER)
        cloud.override(host.compute, 'bootcache', 'enabled', None)
    cloud.restart(*CONTROLLER, STORAGE_SERVICE, TAP, *(
        unit for host in cloud.hosts for unit in (host.connectors_unit, host.gateway_unit)))
    cloud.restart(*(host.compute for host in cloud.hosts))


@pytest.fixture
def afterwards(cloud):
    """The cloud's other tests find all as it was."""
    yield
    put_in(cloud)


@pytest.fixture
def operator(cloud, tenant):
    return Operator(cloud, tenant.openstack)


@pytest.fixture
def user(cloud, operator):
    """The storage service has a user of its own, as the page has it; Keystone's password."""
    page, password = Page('Prepare'), cloud.layout.password
    operator.openstack(page.take(
        'openstack user create --domain default --password PASSWORD bootcache', PASSWORD=password))
    operator.openstack(page.take('openstack role add --project service --user bootcache admin'))
    own = config.service_user(cloud.layout)['username']
    text = cloud.config_file.read_text()
    assert text.count(f'username = {own}') == 1
    config.put(cloud.config_file, text.replace(f'username = {own}', 'username = bootcache'))
    cloud.restart(STORAGE_SERVICE)


@pytest.fixture
def policy(operator):
    """RabbitMQ has the page's bound for the queues."""
    line = re.search(r'^ +(rabbitmqctl set_policy (?:.*\\\n)*.*)$', PAGE, re.MULTILINE)[1]
    operator.rabbitmqctl(line.replace('\\\n', ''))
    assert 'bootcache' in operator.rabbitmqctl('rabbitmqctl list_policies')


def anywhere(tenant, image):
    """Boot a server where Nova's scheduler wants it; the server."""
    server = tenant.openstack.create_server(f'e2e-{uuid.uuid4().hex[:8]}', image, 'm1.tiny')
    tenant._servers.append(server)
    tenant.openstack.wait_active(server)
    return server


def boot_again(tenant, server):
    """Start a server that is off, and wait until it is up with its data as it was."""
    tenant.openstack.nova.servers.start(server)
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'a boot', 150)
    assert 'mark: ok' in tenant.openstack.wait_console(server, 'small login:')
    tenant.command(server, 'verify')
    tenant.command(server, 'check-all')


def ours(operator, what):
    """The broker's queues or exchanges that are bootcache's."""
    names = operator.rabbitmqctl(f'rabbitmqctl list_{what} name').split()
    return [name for name in names if name.startswith('bootcache')]


def test_it_is_taken_out_by_the_page(cloud, afterwards, tenant, operator, user, policy,
                                     small_image):
    first, second = cloud.hosts
    computes = [host.compute for host in cloud.hosts]
    page, openstack = Page('Taking it out'), tenant.openstack
    image = tenant.image(small_image, by_import=True, bootcache_require='driver',
                         **{f'trait:{TRAIT}': 'required'})
    tenant.wait_state(image, 'ready')
    running, stopped = tenant.server(image), tenant.server(image)
    elsewhere = tenant.server(image, host=second)
    for server in (running, stopped, elsewhere):
        tenant.login(server)
        tenant.command(server, 'write 2')
        assert '/_bootcache/' in tenant.backing(server)[1]
    openstack.nova.servers.stop(stopped)
    openstack.wait_status(stopped, 'SHUTOFF')
    guests = cloud.guests()

    # The package first, as a test of this test: nova-scheduler does not live without it.
    tried = cloud.uninstall_package() / 'tried'
    with pytest.raises(ServiceError, match="No module named 'nova_bootcache'"):
        cloud.restart('scheduler')
    assert 'nova-scheduler' in tried.read_text()
    tried.unlink()
    cloud.install_package()
    cloud.restart('scheduler')

    # 1. What asks for bootcache's hosts, and what keeps servers on them.
    listed = 'bootcache host list --unsettled'

    def unsettled():
        return {row['server']: row['why'] for row in operator.bootcache(listed)
                if row['host'] in (first.hostname, second.hostname)}

    wait_until(lambda: set(unsettled()) == {running, stopped, elsewhere}
               and all('bootcache_settle=no' in why for why in unsettled().values()),
               'all three are told to stay')
    flavor = openstack.nova.flavors.find(name='m1.tiny')
    flavor.set_keys({f'trait:{TRAIT}': 'required'})
    with tenant.aggregate(first, bootcache_weight_multiplier='2') as aggregate:
        for line, whose in (
                ('openstack image list --property bootcache_require=warm', None),
                ('openstack image list --property bootcache_require=driver', image),
                (f'openstack image list --property trait:{TRAIT}=required', image),
                (f'openstack flavor list --long | grep {TRAIT}', 'm1.tiny'),
                ('openstack aggregate list --long | grep bootcache', aggregate),
                ('openstack image list --property bootcache_settle=no', image)):
            listed_by = operator.openstack(page.take(line))
            assert image not in listed_by if whose is None else whose in listed_by
        for line, values in (
                ('openstack image unset --property bootcache_require IMAGE', {'IMAGE': image}),
                (f'openstack image unset --property trait:{TRAIT} IMAGE', {' IMAGE': f' {image}'}),
                (f'openstack flavor unset --property trait:{TRAIT} FLAVOR', {'FLAVOR': 'm1.tiny'}),
                ('openstack aggregate unset --property bootcache_weight_multiplier AGGREGATE',
                 {'AGGREGATE': aggregate}),
                ('openstack image unset --property bootcache_settle IMAGE', {'IMAGE': image})):
            operator.openstack(page.take(line, **values))
        assert openstack.nova.aggregates.list()[0].metadata == {}
    assert flavor.get_keys() == {}

    # 2. nova-scheduler: all three options that name us.
    text = (cloud.layout.layers('nova') / '60-bootcache.conf').read_text()
    assert WEIGHER in text and FILTER in text and f',{FILTER.rpartition(".")[2]}' in text
    for name in ('weight_classes', 'available_filters', 'enabled_filters',
                 'bootcache_weight_multiplier'):
        assert f'   * ``{name}``: ' in PAGE
    cloud.configure_nova('DEFAULT', 'bootcache')
    cloud.restart('scheduler')

    # 3. Glance: its import plugin, its notifications, its section; as before.
    cloud.layer('glance', '60-bootcache', None)
    cloud.restart('glance')
    unrecorded = tenant.image(small_image, by_import=True)

    # 4. The compute hosts, once their servers are settled.
    for compute in computes:
        cloud.override(compute, 'bootcache', 'enabled', False)
    cloud.restart(*computes)
    page.take(listed)
    wait_until(lambda: not unsettled(), 'all servers are settled')
    for host in cloud.hosts:
        wait_until(lambda host=host: TRAIT not in openstack.traits(host), 'no trait')
    looked = page.take('qemu-img info -U --backing-chain /var/lib/nova/instances/SERVER/disk',
                       **{'/var/lib/nova/instances': str(cloud.layout.instances)})
    for server in (running, stopped, elsewhere):
        command = cloud.inside(tenant.host_of(server), *shlex.split(looked.replace(
            'SERVER', server)))
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert '/_base/' in told and '_bootcache' not in told
    cloud.configure_nova('DEFAULT')
    cloud.layer('nova', '70-e2e', {'DEFAULT': {'default_ephemeral_format': 'ext4'}})
    for compute in computes:
        cloud.override(compute, 'bootcache', 'enabled', None)
    cloud.use_driver(STOCK_DRIVER, *cloud.hosts)
    page.skip(NO_SYSTEMD,
              'systemctl disable --now bootcache-gateway bootcache-connectors',
              'rm /etc/systemd/system/bootcache-gateway.service'
              ' /etc/systemd/system/bootcache-connectors.service',
              'rm -rf /etc/systemd/system/bootcache-{gateway,connectors}.service.d /run/bootcache',
              'systemctl daemon-reload')
    page.skip(NO_SYSTEMD,
              'systemctl disable --now bootcache-exchange',
              'rm /etc/systemd/system/bootcache-exchange.service',
              'rm -rf /etc/systemd/system/bootcache-exchange.service.d',
              'systemctl daemon-reload')
    for host in cloud.hosts:
        # The folder is a mount of the host's, and stays.
        cloud.stop(host.gateway_unit)
        cloud.stop(host.connectors_unit)
        assert cloud.gateway_pid(host) is None
        assert not list(host.gateway.glob('connectors/*.pid')), 'connectors ended with theirs'
        operator.shell(f'rm -rf {shlex.quote(str(host.gateway))}/*')
        operator.shell(f'rm -rf {shlex.quote(str(host.instances))}/_bootcache')

    # 5. nova-api.
    cloud.configure_nova()
    cloud.restart('nova-api')

    # 6. The storage service, and what it wrote to images.
    tenant.wait_property(image, properties.STATE, 'ready')
    page.skip(NO_SYSTEMD, 'systemctl disable --now glance-bootcache')
    cloud.stop(STORAGE_SERVICE)
    cleaned = operator.bootcache(page.take('bootcache image clean --all'))
    assert {row['outcome'] for row in cleaned} == {'removed'}
    assert image in {row['image_id'] for row in cleaned}

    # 7. The storage node.
    # Of one that has ended there may be a file: kill says so, and fails.
    operator.shell(page.take('cat /run/glance-bootcache/{,connectors/}*.pid | xargs -r kill -9', **{
        '/run/glance-bootcache': str(cloud.exporter_directory)}) + ' || true')
    wait_until(lambda: cloud.exporter_pid() is None, "the exporter's end", 30)
    page.skip(NO_SYSTEMD,
              'rm /etc/systemd/system/glance-bootcache.service',
              'rm -rf /etc/systemd/system/glance-bootcache.service.d',
              'systemctl daemon-reload')
    operator.shell(page.take('rm -rf /var/lib/bootcache /run/glance-bootcache /etc/bootcache', **{
        '/var/lib/bootcache': str(cloud.state_directory),
        '/run/glance-bootcache': str(cloud.exporter_directory),
        '/etc/bootcache': str(cloud.config_file.parent)}))
    page.skip('a comment', '# What novaclient remembers of flavors, in the home of the'
              ' service\'s user.')
    remembered = cloud.layout.user_home('glance') / '.novaclient'
    assert remembered.exists()
    operator.shell(page.take('rm -rf /var/lib/glance/.novaclient', **{
        '/var/lib/glance/.novaclient': str(remembered)}))
    page.skip('its database is SQLite: tests/functional/test_database_page.py',
              'mariadb -e "DROP DATABASE bootcache"', 'mariadb -e "DROP USER bootcache@\'%\'"',
              'runuser -u postgres -- dropdb bootcache',
              'runuser -u postgres -- dropuser bootcache')

    # 8. Ceph.
    page.skip('this cloud has none: tests/functional/test_ceph_page.py',
              'for clone in $(rbd ls --pool bootcache --namespace storage);'
              ' do rbd rm bootcache/storage/$clone; done',
              'rbd namespace rm bootcache/storage',
              'ceph osd pool rm bootcache bootcache --yes-i-really-really-mean-it',
              'ceph auth rm client.bootcache')

    # 9. RabbitMQ.
    queues = ours(operator, 'queues')
    assert {'bootcache', 'bootcache_images.info'} <= set(queues)
    for name in queues:
        operator.rabbitmqctl(f'rabbitmqctl delete_queue {name}')
    operator.rabbitmqctl(page.take('rabbitmqctl clear_policy bootcache'))

    # 10. The user.
    operator.openstack(page.take('openstack user delete --domain default bootcache'))
    page.skip('Glance runs here', '# Not where Glance runs.', 'userdel glance')

    # 11. The package: every service of OpenStack is started without it.
    logs = {name: Log(cloud.layout.log / f'{name}.log') for name in (*CONTROLLER, *computes)}
    cloud.uninstall_package()
    cloud.restart(*CONTROLLER, *computes)
    shared = 'others use the virtual environment, and it is not beside packages of Debian'
    page.skip(shared,
              'rm -rf /opt/bootcache /usr/local/bin/bootcache /usr/local/bin/bootcache-manage'
              ' /usr/local/bin/bootcache-status',
              '/opt/nova/bin/pip uninstall --yes bootcache',
              'rm -f /opt/nova/lib/python3*/site-packages/{nbd.py,libnbdmod*.so}')
    operator.shell(page.take('rm -rf /etc/bootcache', **{
        '/etc/bootcache': str(cloud.certificates)}))
    page.skip(shared,
              '/opt/glance/bin/pip uninstall --yes bootcache',
              'rm -rf /opt/bootcache-debian /usr/lib/python3/dist-packages/bootcache.pth',
              'rm -f /usr/lib/python3/dist-packages/nova/virt/bootcache')
    page.end()

    # Servers of before run, were never interrupted, and can be stopped and started.
    assert [pid for pid in cloud.guests() if pid in guests] == guests
    for server in (running, elsewhere):
        tenant.command(server, 'verify')
        tenant.command(server, 'check-all')
        with openstack.domain(server) as domain:
            assert '_bootcache' not in domain.XMLDesc() and 'gateway.sock' not in domain.XMLDesc()
    boot_again(tenant, stopped)
    openstack.nova.servers.stop(running)
    openstack.wait_status(running, 'SHUTOFF')
    boot_again(tenant, running)
    openstack.nova.servers.reboot(elsewhere, 'HARD')
    openstack.wait_active(elsewhere)
    wait_until(lambda: 'boot number 2' in openstack.console(elsewhere), 'a boot', 150)
    # nova-scheduler schedules; servers of an old image and of new ones boot the stock way.
    new = tenant.image(small_image, by_import=True)
    for each in (image, unrecorded, new):
        wait_until(lambda each=each: openstack.image_api('GET', f'/{each}')['status'] == 'active',
                   'an active image')
        server = anywhere(tenant, each)
        tenant.login(server)
        assert '/_base/' in tenant.backing(server)[1]
    # Nothing is left of us: no queue, but for the exchange that the page names, no policy,
    assert ours(operator, 'queues') == []
    assert ours(operator, 'exchanges') == ['bootcache'] and 'The exchange ``bootcache`` is' in PAGE
    assert 'bootcache' not in operator.rabbitmqctl('rabbitmqctl list_policies')
    # no property that we set, nothing that hosts reserve or publish,
    for each in openstack.image_api('GET')['images']:
        assert not {properties.STATE, properties.REASON} & set(each), each
    for host in cloud.hosts:
        wait_until(lambda host=host: warmth.STATS_KEY not in records.statistics(cloud.layout, host)
                   and openstack.inventory(host)['DISK_GB']['reserved'] == 0
                   and TRAIT not in openstack.traits(host), 'the host counts as stock')
        # no file and no process,
        left = [str(path) for folder in (host.instances, host.state, host.gateway)
                for path in folder.rglob('*') if 'bootcache' in path.relative_to(folder).as_posix()]
        assert left == [] and list(host.gateway.iterdir()) == []
        assert cloud.gateway_pid(host) is None
    for path in (cloud.state_directory, cloud.exporter_directory, cloud.config_file.parent,
                 cloud.certificates):
        assert not path.exists()
    # no user, and nobody who asks for the package.
    with pytest.raises(ClientError, match=r'(?i)no user'):
        operator.openstack('openstack user show --domain default bootcache')
    assert not tried.exists(), tried.read_text()
    assert [name for name, log in logs.items() if 'nova_bootcache' in log.text()] == []


def test_it_can_be_put_in_again(tenant, small_image):
    """What was taken out is there for the tests that follow."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    server = anywhere(tenant, image)
    tenant.login(server)
    assert '/_bootcache/' in tenant.backing(server)[1]
