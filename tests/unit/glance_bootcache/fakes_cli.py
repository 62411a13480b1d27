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


class FakeAPI:
    """Stands for rpcapi.StorageAPI, without a message bus: scripted answers, and what was asked.

    :ivar fails: raised by every call, if set.
    """

    def __init__(self):
        self.calls = []
        self.fails = None
        self.refused = {}     # by image, for warm_image and evict_image
        self.hosts = []
        self.bases = {}       # by host
        self.where = {}       # by image
        self.warming = {}     # by image
        self.images = {}
        self.pinned = {}

    def _note(self, name, *arguments):
        self.calls.append((name, *arguments))
        if self.fails:
            raise self.fails

    def list_hosts(self):
        """As StorageAPI.list_hosts."""
        self._note('list_hosts')
        return self.hosts

    def host_bases(self, host):
        """As StorageAPI.host_bases."""
        self._note('host_bases', host)
        return self.bases.get(host)

    def image_hosts(self, image_id):
        """As StorageAPI.image_hosts."""
        self._note('image_hosts', image_id)
        return self.where.get(image_id)

    def evict_image(self, image_id, hosts):
        """As StorageAPI.evict_image."""
        self._note('evict_image', image_id, hosts)
        if image_id in self.refused:
            raise refusal(self.refused[image_id])
        told = [entry for entry in self.where[image_id]['hosts']
                if hosts is None or entry['host'] in hosts]
        for entry in told:
            entry['leaving'] = True
        return [entry['host'] for entry in told]

    def warm_image(self, image_id, aggregates):
        """As StorageAPI.warm_image."""
        self._note('warm_image', image_id, aggregates)
        if image_id in self.refused:
            raise refusal(self.refused[image_id])
        return self.warming.setdefault(image_id, [report(name) for name in aggregates])

    def get_warming(self, image_id):
        """As StorageAPI.get_warming."""
        self._note('get_warming', image_id)
        return self.warming.get(image_id, [])

    def list_images(self):
        """As StorageAPI.list_images."""
        self._note('list_images')
        return list(self.images.values())

    def get_image(self, image_id):
        """As StorageAPI.get_image."""
        self._note('get_image', image_id)
        return self.images.get(image_id)

    def build_image(self, image_id):
        """As StorageAPI.build_image."""
        self._note('build_image', image_id)

    def delete_image(self, image_id):
        """As StorageAPI.delete_image."""
        self._note('delete_image', image_id)
        return image_id in self.images

    def pin_image(self, image_id, pinned):
        """As StorageAPI.pin_image."""
        self._note('pin_image', image_id, pinned)
        return image_id in self.images

    def get_working_set(self, image_id):
        """As StorageAPI.get_working_set."""
        self._note('get_working_set', image_id)
        return None if image_id not in self.images else {
            'version': 1, 'image_id': image_id, 'image_hash': 'sha256:00', 'virtual_bytes': 1 << 20,
            'granularity': 4096, 'extents': [[65536, 4096, 0.0], [0, 4096, 0.5]]}


def image(image_id, **more):
    """An image as ``get_image`` tells it."""
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
        self.api = FakeAPI()
        self.time = Time()
        self._monkeypatch = monkeypatch
        self._config = tmp_path / 'bootcache.conf'
        self._config.write_text(f'[bootcache]\nstate_dir = {tmp_path}\n'
                                'transport_url = rabbit://user:secret@bus:5672/\n')
        monkeypatch.setattr(main.rpcapi, 'StorageAPI', lambda conf: self.api)
        monkeypatch.setattr(main.commandmanager, 'CommandManager', Commands)
        for module in (evict, image_module, listing):
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
