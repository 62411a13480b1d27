"""A real Glance, alone: its API, its tasks and its stores, on a port of its own.

Who asks is believed: believing.py stands for Keystone, a token is ``user.project.role``, and
``.service`` if a service asks for that user. tests/e2e has it with Keystone.
"""

import contextlib
import http.client
import io
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import glanceclient
from functional_tools import free_port, until

TOP = Path(__file__).resolve().parents[2]
ETC = Path(sys.prefix) / 'etc' / 'glance'
_PIPELINE = """
[pipeline:glance-api-test]
pipeline = versionnegotiation believing context rootapp
[filter:believing]
paste.filter_factory = believing:factory
"""
MEMBER, ADMIN = 'user.project.member.', 'root.admin.admin.'
# Nova, for that user.
SERVICE = f'{MEMBER}service'


class Glance:
    """A Glance with its files in a directory.

    :param directory: of the test's.
    :param images: of its file store.
    :param options: further sections of glance-api.conf.
    """

    def __init__(self, directory, images, stores='file:bootcache', **options):
        self.home = f'{directory}/glance'
        self.images, self.port = images, free_port()
        self.url = f'http://127.0.0.1:{self.port}'
        self._process = None
        for name in ('etc', 'staging', 'tasks', 'lock', 'home'):
            os.makedirs(f'{self.home}/{name}')
        self._options = options
        self._write(stores)
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', 'tools.cloud.database_setup', 'glance',
             f'{self.home}/etc/glance-api.conf'], check=False, cwd=TOP, env=self._environment,
            capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    @property
    def database(self):
        """The path of its database."""
        return f'{self.home}/glance.sqlite'

    @property
    def _environment(self):
        return {'PATH': os.environ['PATH'], 'HOME': f'{self.home}/home', 'PYTHONWARNINGS': 'ignore',
                'OS_GLANCE_CONFIG_DIR': f'{self.home}/etc',
                'PYTHONPATH': f'{TOP}/tools/cloud/shims:{TOP}:{TOP}/tests/functional'}

    def _write(self, stores):
        with open(f'{ETC}/glance-api-paste.ini') as stream:
            paste = stream.read()
        with open(f'{self.home}/etc/paste.ini', 'w') as stream:
            stream.write(paste + _PIPELINE)
        names = [entry.partition(':')[0] for entry in stores.split(',')]
        sections = {
            'DEFAULT': {'use_stderr': True, 'enabled_backends': stores,
                        'enabled_import_methods': '[glance-direct,copy-image]',
                        'worker_self_reference_url': self.url, 'node_staging_uri':
                        f'file://{self.home}/staging'},
            'database': {'connection': f'sqlite:///{self.database}'},
            'glance_store': {'default_backend': names[0]},
            'os_glance_staging_store': {'filesystem_store_datadir': f'{self.home}/staging'},
            'os_glance_tasks_store': {'filesystem_store_datadir': f'{self.home}/tasks'},
            'paste_deploy': {'flavor': 'test', 'config_file': f'{self.home}/etc/paste.ini'},
            'oslo_concurrency': {'lock_path': f'{self.home}/lock'},
            **{name: {'filesystem_store_datadir': self.images} for name in names}}
        for name, entries in self._options.items():
            sections.setdefault(name, {}).update(entries)
        with open(f'{self.home}/etc/glance-api.conf', 'w') as stream:
            for name, entries in sections.items():
                stream.write(f'[{name}]\n' + ''.join(
                    f'{key} = {value}\n' for key, value in entries.items()))

    def start(self, stores=None):
        """Start it, with other stores if they are given.

        :param stores: ``enabled_backends``.
        """
        assert self._process is None
        if stores:
            self._write(stores)
        with open(f'{self.home}/log', 'a') as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name('gunicorn')),
                 '--config', f'{TOP}/tools/cloud/gunicorn_conf.py',
                 '--bind', f'127.0.0.1:{self.port}', 'glance.wsgi.api:application'],
                cwd=TOP, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        until(self._answers, 'Glance', 120)
        return self

    def _answers(self):
        assert self._process.poll() is None, self.log()
        try:
            with urllib.request.urlopen(f'{self.url}/versions', timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, http.client.HTTPException):
            return False

    def stop(self):
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            # Its worker, if it is left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def log(self):
        """Return what it has logged."""
        with open(f'{self.home}/log') as stream:
            return stream.read()

    def client(self, token=MEMBER):
        """Return a client.

        :param token: who asks.
        """
        return glanceclient.Client('2', endpoint=self.url, token=token)

    def file(self, image_id):
        """Return the path of an image's file."""
        return f'{self.images}/{image_id}'

    def image(self, token=MEMBER, **properties):
        """Make a record without data, and return its id."""
        return self.client(token).images.create(**{
            'name': 'test', 'disk_format': 'raw', 'container_format': 'bare', **properties})['id']

    def upload(self, content, **properties):
        """Make an image as a tenant does, and return its id."""
        image_id = self.image(**properties)
        self.client().images.upload(image_id, io.BytesIO(content))
        return image_id

    def add_location(self, image_id, url, token=SERVICE):
        """Give an image a location; Glance answers before it has looked at it."""
        self.client(token).images.add_image_location(image_id, url, {})

    def status(self, image_id):
        """Return an image's status."""
        return self.client().images.get(image_id)['status']

    def wait(self, image_id, status='active', hashed=True):
        """Wait until an image has a status, and Glance has read all of it and does nothing more.

        :param hashed: whether it makes a hash.
        """
        until(lambda: self.status(image_id) == status, f'status {status} of {image_id}', 60)
        if status == 'active':
            until(lambda: not hashed or self.client().images.get(image_id)['os_hash_value'],
                  'the hash', 60)
            # Its task saves the image once more after the hash; who deletes it then may be refused.
            self.task_ended(image_id)

    def task_ended(self, image_id):
        """Wait until what Glance does with an image has come to its end."""
        def done():
            return 'os_glance_import_task' not in self.client(ADMIN).images.get(image_id)
        until(done, f'the end of the task of {image_id}', 60)

    def content(self, image_id):
        """Return an image's bytes; none of one whose data Glance does not find."""
        return b''.join(self.client().images.data(image_id) or ())

    def note(self, image_id, name, value):
        """Have an image's record say what Glance's own work writes there; None takes it away."""
        with contextlib.closing(sqlite3.connect(self.database)) as database, database:
            database.execute('DELETE FROM image_properties WHERE image_id = ? AND name = ?',
                             (image_id, name))
            if value is not None:
                database.execute(
                    'INSERT INTO image_properties (image_id, name, value, created_at, updated_at,'
                    ' deleted) VALUES (?, ?, ?, datetime(), datetime(), 0)',
                    (image_id, name, value))

    def locations(self, image_id):
        """Return the locations that Glance has noted of an image."""
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            return [value for value, in database.execute(
                'SELECT value FROM image_locations WHERE image_id = ? AND deleted = 0',
                (image_id,))]
