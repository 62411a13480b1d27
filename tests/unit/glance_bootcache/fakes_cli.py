"""Stand-ins for tests of the commands: the RPC client, and time."""

import contextlib
import importlib
import io
import json
import logging
import pathlib
import tomllib
import types

import oslo_messaging as messaging
from cliff import commandmanager
from oslo_config import cfg

from bootcache import exception
from bootcache.rpc import messages
from bootcache.rpc.fields import plain
from bootcache.rpc.report import (
    BaseRead,
    BasesRead,
    PausedGuest,
    PausedGuests,
    UnsettledServer,
    UnsettledServers,
)
from glance_bootcache import progressline
from glance_bootcache.cli import evict, listing, main
from glance_bootcache.cli import image as image_module

PYPROJECT = pathlib.Path(__file__).resolve().parents[3] / 'pyproject.toml'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '0a4f3c1e-7a0e-4a4e-9b38-0c8c3f8b9a11'


def refusal(text):
    """What the RPC client raises when the service refuses."""
    return messaging.RemoteError(exception.RequestRefused.__name__, text, ['a', 'traceback'])


def entry_points():
    """The commands of this tree, which need not be installed: name and class by name."""
    document = tomllib.loads(PYPROJECT.read_text())
    return document['project']['entry-points']['bootcache.cli']


class Commands(commandmanager.CommandManager):
    """cliff's, with this tree's commands."""

    def load_commands(self, namespace):
        """As cliff's."""
        assert namespace == 'bootcache.cli'
        for name, where in entry_points().items():
            module, _, command = where.partition(':')
            self.add_command(name.replace('_', ' '),
                             getattr(importlib.import_module(module), command))


class Time:
    """The module ``time``; seconds pass only while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.at = []

    def monotonic(self):
        """As time.monotonic."""
        return self.now

    def sleep(self, seconds):
        """As time.sleep; what was put on ``at`` happens meanwhile."""
        assert seconds > 0
        self.now += seconds
        for moment in [one for one in self.at if one[0] <= self.now]:
            self.at.remove(moment)
            moment[1]()

    def after(self, seconds, what):
        """Have something happen."""
        self.at.append((self.now + seconds, what))


def held(host, **more):
    """A host that holds an image, as ``image_hosts`` tells it."""
    return {'host': host, 'medium': 'disk', 'bytes': 104857600, 'last_use': 1790000000.9,
            'seen': 12.4, 'leaving': False, **more}


def report(aggregate, done=False, reason='', **hosts):
    """How far the warming of an aggregate is; hosts as (outcome, attempts, reason)."""
    return {'aggregate': aggregate, 'done': done, 'reason': reason,
            'hosts': {host: dict(zip(('outcome', 'attempts', 'reason'), known, strict=True))
                      for host, known in hosts.items()}}


class FakeClient:
    """Stands for StorageClient, without a message bus: scripted answers, and what was asked.

    :ivar calls: the messages.
    :ivar fails: raised by every call, if set.
    """

    def __init__(self):
        self.calls = []
        self.fails = None
        self.refused = {}     # by image, for WarmImage and EvictImage, and by node
        self.hosts = []
        self.bases = {}       # by host
        self.where = {}       # by image
        self.warming = {}     # by image
        self.images = {}
        self.pinned = {}
        self.nodes = []

    def send(self, message):
        """Return the scripted answer."""
        self.calls.append(message)
        if self.fails:
            raise self.fails
        match message:
            case messages.EvictImage() | messages.WarmImage() \
                    if message.image_id in self.refused:
                raise refusal(self.refused[message.image_id])
            case messages.SetNodeWish(name, _) if name in self.refused:
                raise refusal(self.refused[name])
            case messages.ListHosts():
                return [] if message.marker else self.hosts
            case messages.HostBases(host):
                return self.bases.get(host)
            case messages.ForgetHost(host):
                return host in self.bases
            case messages.ListNodes():
                return self.nodes
            case messages.SetNodeWish(name, _):
                return name in [entry['name'] for entry in self.nodes]
            case messages.ImageHosts(image_id):
                return self.where.get(image_id)
            case messages.EvictImage(image_id, hosts):
                told = [entry for entry in self.where[image_id]['hosts']
                        if hosts is None or entry['host'] in hosts]
                for entry in told:
                    entry['leaving'] = True
                return [entry['host'] for entry in told]
            case messages.WarmImage(image_id, aggregates):
                return self.warming.setdefault(image_id, [report(name) for name in aggregates])
            case messages.GetWarming(image_id):
                return self.warming.get(image_id, [])
            case messages.ListImages():
                return [] if message.marker else list(self.images.values())
            case messages.GetImage(image_id):
                return self.images.get(image_id)
            case messages.BuildImage():
                return None
            case messages.DeleteImage(image_id) | messages.PinImage(image_id, _):
                return image_id in self.images
            case messages.GetWorkingSet(image_id):
                return None if image_id not in self.images else {
                    'version': 1, 'image_id': image_id, 'image_hash': 'sha256:00',
                    'virtual_bytes': 1 << 20, 'granularity': 4096,
                    'extents': [[65536, 4096, 0.0], [0, 4096, 0.5]]}
        raise AssertionError(f'{message} has no script')


def host(name, seen, **more):
    """A host as ListHosts tells it."""
    return {'host': name, 'seen': seen, 'images': 0, 'bytes': {}, 'quotas': {}, 'unsettled': None,
            'paused': None, 'rpc': None, 'certificates_end': None, **more}


def unsettled(servers, *named):
    """Servers that depend on bootcache, as ListHosts tells them."""
    return plain(UnsettledServers(servers, tuple(UnsettledServer(*one) for one in named)))


def paused(servers, *named):
    """Servers that are paused, likewise."""
    return plain(PausedGuests(servers, tuple(PausedGuest(*one) for one in named)))


def bases(count, *named):
    """How a host reads bases, as HostBases tells it."""
    return {'seen': 2.0, 'bases': plain(BasesRead(count, tuple(BaseRead(*one) for one in named)))}


def node(name, **more):
    """A storage node as ListNodes tells it."""
    return {'name': name, 'state': 'up', 'wish': None, 'restored': False, 'silent': 1.4,
            'images': 0, 'free_bytes': 1 << 30, 'rpc': '2.1', 'answers': False, **more}


def image(image_id, **more):
    """An image as GetImage tells it."""
    return {'image_id': image_id, 'state': 'ready', 'reason': '', 'working_set': None,
            'cache_image': None, 'image_format': 'qcow2', 'stored_bytes': 1, 'virtual_bytes': 2,
            'image_hash': '', 'updated_at': '2026-01-02T03:04:05+00:00', 'in_hand': False,
            'progress': None, 'pinned': False, **more}


class Cli:
    """Runs ``bootcache ARGUMENTS`` in this process: the real application on a fake service.

    :ivar api: the fake of the RPC client.
    :ivar time: the fake of time.
    """

    def __init__(self, monkeypatch, tmp_path):
        self.api = FakeClient()
        self.time = Time()
        self._monkeypatch = monkeypatch
        self._config = tmp_path / 'bootcache.conf'
        self._config.write_text(f'[bootcache]\nstate_dir = {tmp_path}\n'
                                'transport_url = rabbit://user:secret@bus:5672/\n')
        monkeypatch.setattr(main, 'StorageClient', lambda conf: self.api)
        monkeypatch.setattr(main.commandmanager, 'CommandManager', Commands)
        for module in (evict, image_module, listing, progressline):
            monkeypatch.setattr(module, 'time', self.time)

    def __call__(self, *arguments, stderr=None):
        """Run a command; its exit code, standard output and standard error.

        :param stderr: what standard error is; kept in memory, not a terminal, if not given.
        """
        # Not the process's own, which other tests use.
        self._monkeypatch.setattr(main, 'cfg', types.SimpleNamespace(
            CONF=cfg.ConfigOpts(), Error=cfg.Error))
        out, err = io.StringIO(), stderr or io.StringIO()
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = main.main(['--config-file', str(self._config), *arguments])
                except SystemExit as end:
                    code = end.code
        finally:
            # cliff logs to standard error, one more time with each run.
            root.handlers[:] = handlers
            root.setLevel(level)
        return types.SimpleNamespace(code=code, out=out.getvalue(),
                                     err='' if stderr else err.getvalue())

    def json(self, *arguments, code=0):
        """Run a command with ``-f json``; its answer."""
        done = self(*arguments, '-f', 'json')
        assert done.code == code, done.err
        return json.loads(done.out)
