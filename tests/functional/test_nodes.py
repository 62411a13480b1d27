"""Several storage nodes: real services by one RabbitMQ and one MariaDB; Keystone, Nova and Glance
are stand-ins."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import nbd
import oslo_messaging as messaging
import pytest
from command import SERVICE, TOP, command
from functional_tools import free_port, until
from oslo_messaging import conffixture

from bootcache import conf as bootcache_conf
from bootcache.rpc.client import StorageClient
from bootcache.rpc.messages import (
    GetImage,
    ImageRegistered,
    ListNodes,
    PlanBoot,
    ReportHoldings,
    SetNodeWish,
)
from bootcache.rpc.report import HostReport
from glance_bootcache.storage import inspection
from tools import databases
from tools.standins import PASSWORD, REGION, serving

PATIENCE = 60
CONTENT = {str(uuid.UUID(int=number)): bytes([number]) * 65536 for number in range(1, 5)}
IMAGE = min(CONTENT)
MANAGE = '''
import sys
from glance_bootcache.cli import manage
sys.exit(manage.main(sys.argv[1:]))
'''
# For which two releases work side by side; once it was an hour.
SIDE_BY_SIDE_SECONDS = float(os.environ.get('BOOTCACHE_SIDE_BY_SIDE_SECONDS', '5'))
# A checkout of an earlier commit, whose release the earlier one is; this tree if there is none.
EARLIER_TREE = os.environ.get('BOOTCACHE_EARLIER_TREE')
# A standby copy is made at once.
SOON = {'glance_bootcache/nodes/standbys.py': [
    ('_LOOK_SECONDS, _NEEDED_SECONDS = 60.0, 600.0', '_LOOK_SECONDS, _NEEDED_SECONDS = 1.0, 0.0')]}
# What the next release may do: another schema that only adds, entries of answers that this one does
# not know, and other rules by which bases are looked at.
LATER = {
    'bootcache/rpc/messages.py': [("VERSION = '2.1'", "VERSION = '2.2'")],
    'glance_bootcache/rpc/endpoints.py': [
        ('        if message.server_id:\n',
         "        answer['later'] = 'x'\n        if message.server_id:\n")],
    'glance_bootcache/storage/inspection.py': [(f'RULES = {inspection.RULES}\n', 'RULES = 99\n')],
    'glance_bootcache/db/migrations/versions/later.py': [('', '''
import sqlalchemy as sa
from alembic import op

revision = '0003_0002'
down_revision = '0002'


def upgrade():
    op.add_column('images', sa.Column('later', sa.String(16)))
    op.create_table('later', sa.Column('id', sa.Integer, primary_key=True))
''')]}


@pytest.fixture(scope='module')
def mariadb():
    server = databases.MariaDB()
    yield server
    server.remove()


class Node:
    """A storage node: its service is a process of its own, and so is its exporter.

    :ivar tree: of its release, where that is another one.
    """

    def __init__(self, home, name, sections, tree=None):
        self.name, self.home, self.port, self.tree = name, home / name, free_port(), tree
        self.home.mkdir()
        sections = {**sections, 'DEFAULT': {**sections['DEFAULT'], 'host': name},
                    'bootcache': {**sections['bootcache'], 'state_dir': self.home / 'state',
                                  'run_dir': self.home / 'run', 'export_port': self.port}}
        (self.home / 'bootcache.conf').write_text(''.join(
            f'[{section}]\n' + ''.join(f'{key} = {value}\n' for key, value in entries.items())
            for section, entries in sections.items()))
        self.process = None

    def command(self, program, *arguments):
        argv, options = command(program, str(self.home), *arguments, '--config-file',
                                str(self.home / 'bootcache.conf'))
        if self.tree is not None:
            options.update(cwd=self.tree, env={**options['env'], 'PYTHONPATH': str(self.tree)})
        return argv, options

    def start(self):
        argv, options = self.command(SERVICE)
        with open(self.home / 'log', 'a') as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, **options)
        count = self.log.count('glance-bootcache serves')
        until(lambda: self.log.count('glance-bootcache serves') > count
              or self.process.poll() is not None, f'the start of {self.name}', PATIENCE)
        assert self.process.poll() is None, self.log

    @property
    def log(self):
        path = self.home / 'log'
        return path.read_text() if path.exists() else ''

    @property
    def files(self):
        """The files in its images' directories."""
        return {path.name for path in (self.home / 'state' / 'images').glob('*/*')}

    def exporters(self):
        return [int(path.read_text()) for path in (self.home / 'run').glob('*.pid')]

    def kill(self):
        """As a machine that loses power: all of its processes are gone."""
        for pid in (self.process.pid, *self.exporters()):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        for pid in self.exporters():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
            until(lambda pid=pid: not os.path.exists(f'/proc/{pid}'), 'the end of an exporter')


@pytest.fixture
def send(storage_conf, rabbit, monkeypatch):
    """Sends a message as hosts do."""
    opened = []
    real = messaging.get_rpc_transport
    monkeypatch.setattr(messaging, 'get_rpc_transport',
                        lambda *some, **named: opened.append(real(*some, **named)) or opened[-1])
    storage_conf.set_override('transport_url', rabbit, bootcache_conf.GROUP)
    conffixture.ConfFixture(storage_conf)
    client = StorageClient(storage_conf)

    def send(message):
        time.sleep(0.1)  # A node refuses more than 20 a second of a sender.
        return client.send(message)

    yield send
    for transport in opened:
        transport.cleanup()


@pytest.fixture
def glance():
    """The images that Glance has."""
    return dict(CONTENT)


@pytest.fixture
def add_node(directory, rabbit, mariadb, glance):
    """Makes storage nodes of one database; at the end they are stopped."""
    url = mariadb.database()
    databases.made(url).close()
    with serving(glance, lists_images=True) as keystone:
        sections = {
            'DEFAULT': {'transport_url': rabbit}, 'database': {'connection': url},
            'bootcache': {'poll_interval': 1, 'profile_boots': False, 'changes_per_hour': 0},
            'service_auth': {'auth_type': 'v3password', 'auth_url': keystone,
                             'username': 'bootcache', 'password': PASSWORD,
                             'project_name': 'service', 'user_domain_name': 'Default',
                             'project_domain_name': 'Default', 'region_name': REGION}}
        nodes = []

        def add(name, tree=None, **database):
            nodes.append(Node(Path(directory), name, {
                **sections, 'database': {**sections['database'], **database}}, tree))
            return nodes[-1]

        try:
            yield add
        finally:
            for node in nodes:
                node.stop()
                print(f'{node.name}:\n{node.log}')  # Shown where a test fails.


@pytest.fixture
def cloud(add_node, send):
    """Two storage nodes that work, and a client of theirs."""
    nodes = [add_node('first'), add_node('second')]
    for node in nodes:
        node.start()
    return nodes, send


def states(send):
    return {node['name']: (node['state'], node['images']) for node in send(ListNodes())}


def plan(send, image_id=IMAGE):
    return send(PlanBoot(image_id, 'host', ''))


def served_at(send, image_id=IMAGE):
    """The port at which an image's base is served now; None while it is not."""
    with contextlib.suppress(messaging.MessagingException):
        # What a node had taken that is killed is not answered.
        return plan(send, image_id).get('server', (None, None))[1]
    return None


def read(port, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_tcp('127.0.0.1', str(port))
    content = handle.pread(65536, 0)
    handle.shutdown()
    return content


def register(send, *images):
    for image_id in images:
        send(ImageRegistered(image_id))
    for image_id in images:
        until(lambda image_id=image_id: served_at(send, image_id), f'the base of {image_id}',
              PATIENCE)


def all_see_each_other(nodes, send):
    """They answer in turn."""
    wanted = {node.name for node in nodes}
    until(lambda: all(set(states(send)) == wanted for _turn in range(4)), 'all nodes', PATIENCE)


def test_an_image_has_one_home_and_another_node_takes_it_over_when_that_is_gone(cloud):
    nodes, send = cloud
    all_see_each_other(nodes, send)
    register(send, IMAGE)
    port = served_at(send)
    home, = (node for node in nodes if node.port == port)
    other, = (node for node in nodes if node is not home)
    export = plan(send)['base_export']
    assert read(port, export) == CONTENT[IMAGE]
    # RabbitMQ gives each message to another one.
    assert {served_at(send) for _ask in range(8)} == {port}
    assert states(send)[home.name] == ('up', 1)
    assert states(send)[other.name] == ('up', 0)
    assert not other.files

    home.kill()
    until(lambda: served_at(send) == other.port, 'the base at the other node', PATIENCE)
    assert plan(send)['base_export'] == export
    assert read(other.port, export) == CONTENT[IMAGE]
    assert states(send)[home.name][0] == 'away'
    assert home.files

    home.start()
    until(lambda: states(send).get(home.name) == ('up', 0), 'the node that is back', PATIENCE)
    until(lambda: not home.files, 'the end of what moved', PATIENCE)
    assert read(other.port, export) == CONTENT[IMAGE]
    assert {served_at(send) for _ask in range(8)} == {other.port}
    assert 'Traceback' not in home.log + other.log


def test_a_drained_node_loses_its_images_and_gets_no_new_ones(cloud):
    nodes, send = cloud
    all_see_each_other(nodes, send)
    images = sorted(CONTENT)
    register(send, *images[:3])
    drained, other = nodes
    assert send(SetNodeWish(drained.name, 'drained'))
    until(lambda: states(send)[drained.name] == ('up', 0), 'no image of its own', PATIENCE)
    until(lambda: {served_at(send, image_id) for image_id in images[:3]} == {other.port},
          'all bases at the other node', PATIENCE)
    until(lambda: not drained.files, 'the end of what moved', PATIENCE)
    register(send, images[3])
    until(lambda: served_at(send, images[3]) == other.port, 'a new image there as well', PATIENCE)
    assert not send(SetNodeWish('third', 'drained'))
    assert send(SetNodeWish(drained.name, None))
    until(lambda: {node['wish'] for node in send(ListNodes())} == {None}, 'no wish', PATIENCE)
    assert states(send)[drained.name] == ('up', 0)


def test_hosts_reports_are_known_to_all_nodes_and_tell_what_moved(cloud):
    nodes, send = cloud
    all_see_each_other(nodes, send)
    register(send, IMAGE)
    report = HostReport(needs=frozenset([IMAGE]))
    assert not send(ReportHoldings('host', report, 1)).resend
    until(lambda: not any(send(ReportHoldings('host', None, 1)).resend for _turn in range(4)),
          'the report at both nodes', PATIENCE)
    # One that nobody has heard yet.
    assert all(send(ReportHoldings('host', None, 2)).resend for _turn in range(4))
    assert send(ReportHoldings('host', None, 1)).moved == ()

    home = next(node for node in nodes if node.port == served_at(send))
    assert send(SetNodeWish(home.name, 'drained'))
    until(lambda: all(send(ReportHoldings('host', None, 1)).moved == (IMAGE,)
                      for _turn in range(4)), 'what moved', PATIENCE)
    kept = send(GetImage(IMAGE))['kept_for']
    assert kept == ['host host']


def tree_with(directory, changes_by_name):
    """Make a tree with other code, and return it."""
    tree = Path(directory) / 'tree'
    for package in 'bootcache', 'glance_bootcache', 'tools':
        shutil.copytree(TOP / package, tree / package, ignore=shutil.ignore_patterns('__pycache__'))
    for name, changes in changes_by_name.items():
        path = tree / name
        text = path.read_text() if path.exists() else ''
        for before, after in changes:
            assert text.count(before) == 1
            text = text.replace(before, after)
        path.write_text(text)
    return tree


def generations(send, images):
    """What hosts and servers know of images: a higher one has hosts let go of them."""
    return {image_id: (image['state'], image['generation'])
            for image_id in images for image in [send(GetImage(image_id))]}


def test_storage_nodes_of_two_releases_work_side_by_side(add_node, directory, send):
    first = add_node('first', EARLIER_TREE and Path(EARLIER_TREE))
    second = add_node('second', tree_with(directory, LATER))
    images = sorted(CONTENT)
    first.start()
    register(send, *images[:2])
    argv, options = second.command(MANAGE, 'db', 'sync')
    # A command's options come before its subject.
    argv[argv.index('db'):] = [*argv[argv.index('--config-file'):], 'db', 'sync']
    done = subprocess.run(argv, capture_output=True, check=False, timeout=300, **options)
    assert done.returncode == 0 and '0003_0002' in done.stdout, done.stderr
    second.start()
    all_see_each_other([first, second], send)
    assert send(SetNodeWish(first.name, 'drained'))
    until(lambda: states(send)[first.name] == ('up', 0), 'no image of its own', PATIENCE)
    assert send(SetNodeWish(first.name, None))
    register(send, images[3])
    known = generations(send, images[:2])

    # It starts anew with the tables of the later one.
    first.stop()
    first.start()
    all_see_each_other([first, second], send)
    assert 'of a later release, with which this one works' in first.log
    assert generations(send, images[:2]) == known
    register(send, images[2])
    known, report = generations(send, images), HostReport(needs=frozenset(images))
    deadline, homes = time.monotonic() + SIDE_BY_SIDE_SECONDS, states(send)
    while time.monotonic() < deadline:
        time.sleep(1)
        for image_id in images:
            assert plan(send, image_id)['base_export']
        send(ReportHoldings('host', report, 1))
        assert states(send) == homes and generations(send, images) == known
    assert 'skipped' not in first.log + second.log

    second.kill()
    until(lambda: states(send).get(second.name, ('', 0))[0] == 'away', 'its end', PATIENCE)
    homes = {image_id: served_at(send, image_id) for image_id in images}
    # What the later rules have accepted waits for a node that knows them.
    assert all(port in (None, first.port) for port in homes.values())
    second.start()
    all_see_each_other([first, second], send)
    until(lambda: all(served_at(send, image_id) for image_id in images), 'all bases', PATIENCE)
    assert generations(send, images) == known
    assert 'Traceback' not in first.log + second.log


def test_a_standby_copy_serves_where_glance_has_the_image_no_more(add_node, directory, glance,
                                                                  send):
    tree = tree_with(directory, SOON)
    nodes = [add_node(name, tree) for name in ('first', 'second', 'third')]
    for node in nodes:
        node.start()
    all_see_each_other(nodes, send)
    register(send, IMAGE)
    port = served_at(send)
    home, = (node for node in nodes if node.port == port)
    assert not any(node.files for node in nodes if node is not home)
    assert not send(ReportHoldings('host', HostReport(needs=frozenset([IMAGE])), 1)).resend
    until(lambda: any('has a standby copy' in node.log for node in nodes), 'the copy', PATIENCE)
    export = plan(send)['base_export']
    keeper, = (node for node in nodes if node is not home and node.files)
    content = glance.pop(IMAGE)

    home.kill()
    until(lambda: served_at(send) == keeper.port, 'the base at the node with the copy', PATIENCE)
    assert read(keeper.port, export) == content
    assert 'its base is read from' in keeper.log and 'is downloaded' not in keeper.log.partition(
        'taken over')[2]
    home.start()
    until(lambda: not home.files, 'the end of what moved', PATIENCE)
    assert read(keeper.port, export) == content
    assert 'Traceback' not in ''.join(node.log for node in nodes)


@pytest.fixture
def galera():
    """The nodes of a Galera cluster."""
    servers = []
    try:
        for _node in range(3):
            databases.GaleraNode(servers)
        yield servers
    finally:
        for server in servers:
            server.remove()


def test_a_storage_node_dies_with_its_node_of_a_galera_cluster(add_node, galera, send):
    name = galera[0].new_name()
    databases.made(galera[0].url(name)).close()
    nodes = [add_node(f'node-{number}', connection=server.url(name), mysql_wsrep_sync_wait=1)
             for number, server in enumerate(galera)]
    for node in nodes:
        node.start()
    all_see_each_other(nodes, send)
    register(send, *CONTENT)
    homes = {image_id: served_at(send, image_id) for image_id in CONTENT}
    home, = (node for node in nodes if node.port == homes[IMAGE])
    home.kill()
    galera[nodes.index(home)].stop()
    others = {node.port for node in nodes if node is not home}
    # All are asked for at once, at both nodes: each image is claimed by one.
    until(lambda: all(served_at(send, image_id) in others for image_id in CONTENT),
          'all bases at the other nodes', PATIENCE)
    now = {image_id: served_at(send, image_id) for image_id in CONTENT}
    for image_id, port in now.items():
        assert port == homes[image_id] or homes[image_id] == home.port, 'that one works'
        assert {served_at(send, image_id) for _ask in range(4)} == {port}
        assert read(port, plan(send, image_id)['base_export']) == CONTENT[image_id]

    galera[nodes.index(home)].start()
    home.start()
    all_see_each_other(nodes, send)
    until(lambda: not home.files, 'the end of what moved', PATIENCE)
    assert {image_id: served_at(send, image_id) for image_id in CONTENT} == now
    assert 'Traceback' not in ''.join(node.log for node in nodes)
