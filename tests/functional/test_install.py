"""The package as an operator gets it: sdist and wheel of a tree without git, and what they start.

The wheel is installed into environments of its own: one with nothing but what it requires, by pip,
and what doc/source/install.rst says; one with Nova and Glance, as they lie in the virtual
environment of the tests. tools/setup.sh gets the packages of others, into $BOOTCACHE_HOME/wheels.
"""

import configparser
import contextlib
import http.server
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from pathlib import Path

import pytest
from functional_tools import free_port, until

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / 'doc' / 'source' / 'install.rst').read_text()
# Beside the virtual environment; runs beside each other share both.
WHEELS = Path(sys.prefix).resolve().parent / 'wheels'
SITE = Path(shutil.__file__).parent.name
QUIET = {'PATH': os.environ['PATH'], 'PYTHONWARNINGS': 'ignore'}


def run(*command, **options):
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=500, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(*arguments):
    """The tests' pip, with the settings of whoever runs the tests: where packages come from."""
    return run(sys.executable, '-m', 'pip', '--disable-pip-version-check', *arguments)


def tracked():
    """The files that git has, as they are in the tree."""
    names = run('git', '-C', TOP, 'ls-files', '-z', '--cached', '--others', '--exclude-standard')
    return sorted(name for name in names.split('\0') if (TOP / name).is_file())


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """The sdist, and the wheel that is made from it."""
    tree, out = tmp_path_factory.mktemp('tree'), tmp_path_factory.mktemp('dist')
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, tree / name)
    # The backend is in the tests' environment already: nothing is downloaded for the build.
    run(sys.executable, '-m', 'build', '--no-isolation', '--outdir', out, tree)
    sdist, = out.glob('*.tar.gz')
    wheel, = out.glob('*.whl')
    return sdist, wheel


def environment(path, wheel, *options):
    """A new virtual environment with the wheel; returns its site-packages."""
    if not path.exists():
        run(sys.executable, '-m', 'venv', '--without-pip', path)
    pip('--python', path / 'bin' / 'python', 'install', '-q', '--no-index', '--no-compile',
        *options, wheel)
    return path / 'lib' / SITE / 'site-packages'


@pytest.fixture(scope='module')
def alone(built, tmp_path_factory):
    """An environment with nothing but what install.rst has on a storage node."""
    path = tmp_path_factory.mktemp('alone') / 'venv'
    assert (WHEELS / '.stamp').exists(), 'run tools/setup.sh: it downloads them'
    environment(path, f'{built[1]}[storage]', '--find-links', WHEELS)
    links = re.findall(r'^ +(ln -sf /usr/lib/python3/\S+) /opt/bootcache/(.*)$', PAGE, re.M)
    assert len(links) == 2
    # As who upgrades does: a second time.
    for command, target in 2 * links:
        run('bash', '-c', f'{command} {path}/{target}')
    return path


def nova_and_glance(path, *without):
    """Make a virtual environment with Nova, Glance and what they need; its site-packages."""
    run(sys.executable, '-m', 'venv', '--without-pip', path)
    site = path / 'lib' / SITE / 'site-packages'
    for entry in (Path(sys.prefix) / 'lib' / SITE / 'site-packages').iterdir():
        if entry.name == 'nova':
            # Files of its own: the wheel puts one among them.
            run('cp', '-rs', entry, site / 'nova')
            shutil.rmtree(site / 'nova' / 'virt' / 'bootcache', ignore_errors=True)
        elif 'bootcache' not in entry.name and not entry.name.startswith(('__pycache__', *without)):
            (site / entry.name).symlink_to(entry)
    return site


@pytest.fixture(scope='module')
def beside(built, tmp_path_factory):
    """An environment with Nova and Glance, beside which the wheel is installed."""
    path = tmp_path_factory.mktemp('beside') / 'venv'
    nova_and_glance(path)
    environment(path, built[1], '--no-deps')
    return path


def blocks(title):
    """The lines of the literal blocks that a section of the page has."""
    section = re.split(rf'\n{title}\n=+\n', PAGE)[1].split('\n====')[0]
    return re.findall(r'^  (\S(?:.*\\\n)*.*)$', section, re.M)


@pytest.fixture(scope='module')
def debians(built, tmp_path_factory):
    """Nova and Glance in a Python that is not pip's to change, by the page's commands for Debian's.

    An environment stands for Debian's Python: its site-packages for the folder dist-packages.
    The other one borrows from the Python that both are made of, not from the first one, so what it
    would find there is not asked for.
    """
    folder = tmp_path_factory.mktemp('debians')
    site = nova_and_glance(folder / 'python', 'qemu')
    lines = blocks('Beside Debian\'s own Nova and Glance')
    assert lines[0].startswith('apt-get install ')
    assert lines[1] == '/usr/bin/python3 -m venv --system-site-packages /opt/bootcache-debian'
    own = folder / 'own'
    run(sys.executable, '-m', 'venv', '--without-pip', '--system-site-packages', own)
    for line in lines[2:4]:
        program, _, *arguments = shlex.split(line)
        assert program == '/opt/bootcache-debian/bin/pip'
        pip('--python', own / 'bin' / 'python', 'install', '-q', '--no-index', '--no-compile',
            '--find-links', WHEELS, *[str(built[1]) if argument.startswith('/root/') else argument
                                      for argument in arguments])
    assert lines[4].startswith('echo ') and lines[5].startswith('ln -sfn ')
    for line in lines[4:6]:
        line = line.replace('/usr/lib/python3/dist-packages', str(site))
        assert '/usr/' not in line
        # As who upgrades does: a second time.
        for _time in range(2):
            run('bash', '-ec', line.replace('/opt/bootcache-debian', str(own)))
    assert not (site / 'nova' / 'virt' / 'bootcache' / 'shim').exists()
    return folder / 'python', own, lines[6:]


# What they hold.

def test_sdist_has_all_that_git_has(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition('/')[2] for name in archive.getnames()}
    assert [name for name in tracked() if name not in names] == []


def test_wheel_says_what_it_requires_and_has_units_and_samples(built):
    with zipfile.ZipFile(built[1]) as archive:
        names = archive.namelist()
        metadata, = (name for name in names if name.endswith('.dist-info/METADATA'))
        told = re.findall(r'^Requires-Dist: ([^;\n]+)$', archive.read(metadata).decode(), re.M)
    wanted = [line.split(' #')[0] for line in (TOP / 'requirements.txt').read_text().splitlines()
              if not line.startswith('#')]
    assert sorted(told) == sorted(wanted)
    data = {name.partition('.data/data/')[2] for name in names}
    wanted = [path.name for path in (TOP / 'etc' / 'bootcache').glob('*.sample')]
    wanted += [f'systemd/{path.name}' for path in (TOP / 'etc' / 'systemd').iterdir()]
    wanted += [f'{folder}/{path.name}' for folder in ('apparmor', 'selinux')
               for path in (TOP / 'etc' / folder).iterdir()]
    assert len(wanted) > 8 and {f'share/bootcache/{name}' for name in wanted} <= data
    # Of Nova's folder just the one module that is ours.
    ours = 'nova/virt/bootcache/__init__.py'
    assert [name for name in names if name.startswith('nova/')] == [ours]


# The storage node.

class Cloud(http.server.BaseHTTPRequestHandler):
    """Stands for Keystone, Glance and Nova, which have nothing: the real ones are in tests/e2e."""

    def log_message(self, *arguments):
        """Nothing: the test's output is the service's."""

    def _answer(self, status, document, **headers):
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {'Content-Type': 'application/json', 'Content-Length': len(body),
                            **headers}.items():
            self.send_header(name.replace('_', '-'), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        """A token, with a catalogue of this one server."""
        self.rfile.read(int(self.headers.get('Content-Length', 0)))
        here = f'http://127.0.0.1:{self.server.server_port}'
        catalogue = [{'type': kind, 'id': kind, 'name': kind, 'endpoints': [
            {'interface': interface, 'region': 'RegionOne', 'region_id': 'RegionOne',
             'id': kind + interface, 'url': f'{here}/{kind}/{version}'}
            for interface in ('public', 'internal', 'admin')]}
            for kind, version in (('image', 'v2'), ('compute', 'v2.1'), ('identity', 'v3'))]
        name = {'id': 'bootcache', 'name': 'bootcache',
                'domain': {'id': 'default', 'name': 'Default'}}
        self._answer(201, {'token': {
            'methods': ['password'], 'user': name, 'project': name, 'catalog': catalogue,
            'roles': [{'id': 'admin', 'name': 'admin'}], 'issued_at': '2020-01-01T00:00:00.000000Z',
            'expires_at': '2100-01-01T00:00:00.000000Z'}}, X_Subject_Token='token')

    def do_GET(self):
        """Versions of the API, and empty lists of everything."""
        here = f'http://127.0.0.1:{self.server.server_port}{self.path}'
        versions = {'id': 'v3.14', 'status': 'stable', 'links': [{'rel': 'self', 'href': here}]}
        if 'compute' in self.path:
            versions = {'id': 'v2.1', 'status': 'CURRENT', 'version': '2.100', 'min_version': '2.1',
                        'links': [{'rel': 'self', 'href': here}]}
        self._answer(200, {'version': versions, 'images': [], 'servers': [], 'flavors': [],
                           'aggregates': [], 'availabilityZoneInfo': []})


@pytest.fixture
def cloud():
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Cloud)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    server.server_close()


@pytest.fixture
def config(alone, directory, rabbit, cloud):
    """The configuration that install.rst has for the storage node, with this test's addresses."""
    subprocess.run([alone / 'bin' / 'bootcache', 'ca', f'{directory}/ca', 'storage-1,127.0.0.1'],
                   check=True, env=QUIET, stdin=subprocess.DEVNULL)
    block = re.search(r'^     \[DEFAULT\]\n     transport_url(?:.*\n)+?(?= {0,4}\S)', PAGE, re.M)[0]
    assert '[service_auth]' in block
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(re.sub(r'^ +', '', block, flags=re.M))
    parsed['DEFAULT']['transport_url'] = rabbit
    parsed['bootcache'].update({
        'run_dir': f'{directory}/run', 'state_dir': f'{directory}/state',
        'export_host': '127.0.0.1', 'export_port': str(free_port()),
        'tls_directory': f'{directory}/ca/storage-1', 'glance_store_dirs': f'{directory}/images'})
    parsed['service_auth']['auth_url'] = f'{cloud}/v3'
    for name in ('run', 'images'):
        os.mkdir(f'{directory}/{name}')
    with open(f'{directory}/bootcache.conf', 'w') as stream:
        parsed.write(stream)
    return stream.name


@pytest.fixture
def service(alone, config, directory):
    """glance-bootcache, as its unit starts it."""
    with open(f'{directory}/log', 'wb') as log:
        process = subprocess.Popen([alone / 'bin' / 'glance-bootcache', '--config-file', config],
                                   env=QUIET, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    yield process
    process.kill()
    process.wait()
    # The exporter outlives its service on purpose.
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(Path(directory, 'run', 'exporter.pid').read_text()), signal.SIGKILL)


def test_the_storage_service_and_its_commands_start_with_what_the_page_says(
        alone, service, config, directory):
    log = Path(directory, 'log')
    until(lambda: service.poll() is not None or 'glance-bootcache serves' in log.read_text(),
          'the start of glance-bootcache')
    assert service.poll() is None, log.read_text()
    images = run(alone / 'bin' / 'bootcache', '--config-file', config, 'image', 'list',
                 '-f', 'json', env=QUIET)
    assert json.loads(images) == []
    service.send_signal(signal.SIGTERM)
    assert service.wait(90) == 0, log.read_text()


def test_the_command_tells_of_all_its_parts(alone):
    told = run(alone / 'bin' / 'bootcache', '--help', env=QUIET)
    entries = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['entry-points']
    names = [name.replace('_', ' ') for name in entries['bootcache.cli']]
    assert names and [name for name in names if f'  {name} ' not in told] == []
    usage = run(alone / 'bin' / 'glance-bootcache', '--help', env=QUIET)
    assert '--config-file' in usage


def test_debians_bindings_are_found(alone):
    run(alone / 'bin' / 'python', '-c', 'import libvirt, nbd', env=QUIET, cwd='/')


def test_units_start_what_is_installed(alone):
    share = alone / 'share' / 'bootcache' / 'systemd'
    text = (share / 'glance-bootcache.service').read_text()
    program = re.search(r'^ExecStart=/opt/bootcache/(\S+)', text, re.M)[1]
    assert os.access(alone / program, os.X_OK)
    for unit in share.iterdir():
        assert f'/share/bootcache/systemd/{unit.name} /etc/systemd/system/' in PAGE


# Beside Nova and Glance.

@pytest.mark.parametrize('program', [
    # As Nova loads its driver, the scheduler its plugins, and Glance the hook.
    'from oslo_utils import importutils;'
    ' importutils.import_class("nova.virt.bootcache.BootCacheLibvirtDriver")',
    'from nova.scheduler import filters, weights;'
    ' weights.HostWeightHandler().get_matching_classes('
    '["nova.scheduler.weights.all_weighers", "nova_bootcache.scheduler.weights.BootCacheWeigher"]);'
    ' filters.HostFilterHandler().get_matching_classes('
    '["nova.scheduler.filters.all_filters", "nova_bootcache.scheduler.filters.BootCacheFilter"])',
    'import stevedore; manager = stevedore.NamedExtensionManager("glance.image_import.plugins",'
    ' names=["bootcache"], on_load_failure_callback=lambda *error: exit(error));'
    ' assert manager.names() == ["bootcache"]'], ids=['driver', 'scheduler', 'hook'])
def test_nova_and_glance_find_what_is_theirs(beside, program):
    run(beside / 'bin' / 'python', '-c', f'import nova_bootcache; {program}; '
        f'assert nova_bootcache.__file__.startswith({str(beside)!r})', env=QUIET, cwd='/')


def test_debians_nova_and_glance_find_what_is_theirs(debians):
    python, own, told = debians
    answers = [run('bash', '-ec', command, cwd='/',
                   env={**QUIET, 'PATH': f'{python}/bin:{QUIET["PATH"]}'})
               for command in re.findall(r"python3 .*?'(?:.|\n)*?'$", '\n'.join(told), re.M)]
    assert len(answers) == 3
    for answer, name in zip(answers, ('nova_bootcache.novadriver.driver.BootCacheLibvirtDriver',
                                      'nova_bootcache.scheduler.weights.BootCacheWeigher',
                                      'get_flow'), strict=True):
        assert name in answer
    # What was there before stays first on the path.
    where = run(python / 'bin' / 'python', '-c', 'import bootcache, nova, qemu.qmp, sys;'
                ' print(bootcache.__file__, nova.__file__, qemu.qmp.__file__, sys.path[-1])',
                env=QUIET, cwd='/').split()
    site = str(own / 'lib' / SITE / 'site-packages')
    assert [path.startswith(site) for path in where] == [True, False, True, True]


def test_beside_nova_nothing_of_nova_changes(built, beside):
    told = run(beside / 'bin' / 'python', '-m', 'pip', 'install', '--dry-run', '--no-index',
               built[1], env=QUIET)
    assert 'Would install' not in told, told
