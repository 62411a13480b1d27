"""Documents, samples and units say what the code does."""

import ast
import dataclasses
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from bootcache import conf as shared_conf
from bootcache import exception, manifest, properties
from bootcache.connectors import supervisor
from bootcache.rpc import fields
from bootcache.rpc.messages import MESSAGES, VERSION
from bootcache.storagedaemon import StorageDaemon, UnixListener
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.deployment.checkpoint import Checkpoint, Network, SavedServer
from glance_bootcache.storage.servedexports import ServedImage
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking import placement
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.settling.pivotstate import Marker, PivotPhase

TOP = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
PAGES = TOP / 'doc' / 'source'
SAMPLES = TOP / 'etc' / 'bootcache'
UNITS = TOP / 'etc' / 'systemd'


# Sample configurations.

@pytest.mark.parametrize('name', ['bootcache', 'nova-bootcache'])
def test_samples_are_up_to_date(tmp_path, name):
    # As a module in TOP, so that this tree's options are read and not those of an installation.
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'oslo_config.generator', '--config-file',
         str(SAMPLES / f'{name}-config-generator.conf'), '--output-file', str(tmp_path / 'sample')],
        cwd=TOP, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (SAMPLES / f'{name}.conf.sample').read_text() == (tmp_path / 'sample').read_text(), \
        'run oslo-config-generator; see CONTRIBUTING.md'


def options_in(sample: str) -> dict[str, set[str]]:
    """Return the options that a sample has, by section."""
    sections: dict[str, set[str]] = {}
    section = ''
    for line in sample.splitlines():
        if match := re.fullmatch(r'\[(\w+)\]', line):
            section = match[1]
        elif match := re.match(r'#(\w+) =', line):
            sections.setdefault(section, set()).add(match[1])
    return sections


@pytest.mark.parametrize(('name', 'sources'), [
    ('bootcache', [shared_conf, glance_conf, db_conf]),
    ('nova-bootcache', [shared_conf, nova_conf])])
def test_every_option_is_in_its_sample(name, sources):
    present = options_in((SAMPLES / f'{name}.conf.sample').read_text())
    for source in sources:
        for group, opts in source.list_opts():
            wanted = {opt.dest for opt in opts}
            assert wanted and wanted <= present[group or 'DEFAULT']


def test_options_of_both_sides_do_not_clash():
    names = [opt.dest for source in (shared_conf, glance_conf, nova_conf)
             for group, opts in source.list_opts() if group == shared_conf.GROUP for opt in opts]
    assert len(names) == len(set(names))


# The picture of the house.

def picture() -> set[str]:
    """Return the paths that overview.rst's picture names in the three packages."""
    text = (PAGES / 'overview.rst').read_text().split('The picture of the house')[1]
    found: set[str] = set()
    folders: list[str] = []
    for line in text.splitlines():
        match = re.match(r'    ( *)([\w/]+(?:\.py|/)) {2,}\S', line)
        if match:
            depth = len(match[1]) // 2
            folders[depth:] = [match[2].rstrip('/')]
            found.add('/'.join(folders[:depth + 1]))
    return {path for path in found if path.split('/')[0] in PACKAGES}


def modules() -> set[str]:
    """Return the modules and packages that there are; __init__.py stands for its folder."""
    found = set()
    for package in PACKAGES:
        for path in (TOP / package).rglob('*.py'):
            where = path.parent if path.name == '__init__.py' else path
            found.add(str(where.relative_to(TOP)))
    return found


def test_picture_and_packages_are_the_same():
    assert picture() == modules()


@pytest.mark.parametrize('folder', ['bench', 'devstack', 'doc', 'etc', 'releasenotes', 'tests',
                                    'tools'])
def test_picture_names_the_other_folders(folder):
    assert (TOP / folder).is_dir()
    assert f'    {folder}/ ' in (PAGES / 'overview.rst').read_text()


def test_files_that_overview_points_to_exist():
    text = (PAGES / 'overview.rst').read_text()
    paths = re.findall(r'``((?:\w+/)+\w+\.py)``', text)
    assert paths
    assert [path for path in paths if not (TOP / path).exists()] == []


def test_what_the_storage_side_is_said_to_have_exists():
    """Its section names files, and classes and functions in them, as below glance_bootcache."""
    text = (PAGES / 'overview.rst').read_text().split('The storage side\n==')[1].split('\n==')[0]
    named = re.findall(r'((?:\w+/)*\w+\.py)(?:::([\w.]+\w))?', text)
    assert len(named) > 30
    missing = []
    for path, name in named:
        file = next((found for found in (TOP / 'glance_bootcache' / path, TOP / path)
                     if found.exists()), None)
        body = ast.parse(file.read_text()).body if file else []
        for part in name.split('.') if name else ():
            body = next((node.body for node in body
                         if isinstance(node, ast.ClassDef | ast.FunctionDef)
                         and node.name == part), [])
        if not body:
            missing.append((path, name))
    assert missing == []


# Formats and properties.

@pytest.mark.parametrize('document', [ServedImage, CacheEntry, Marker, Checkpoint,
                                      SavedServer, Network])
def test_formats_name_every_entry(document):
    text = (PAGES / 'formats.rst').read_text()
    assert [field.name for field in dataclasses.fields(document)
            if f'* - ``{field.name}``' not in text] == []


def test_formats_list_each_message_and_each_field_of_it(monkeypatch):
    pytest.importorskip('sphinx')
    monkeypatch.syspath_prepend(str(PAGES / '_ext'))
    rpc_messages = importlib.import_module('rpc_messages')
    assert '.. rpc-messages::' in (PAGES / 'formats.rst').read_text()
    text = '\n'.join(rpc_messages.text())
    assert f'The version is {VERSION};' in text
    for declared in (*MESSAGES.values(), *rpc_messages.parts()):
        assert f'``{getattr(declared, "method", declared.__name__)}``' in text
        assert [name for name in fields.bounds(declared) if f'* ``{name}`` (' not in text] == []


def test_properties_page_names_every_property_and_state():
    text = (PAGES / 'image-properties.rst').read_text()
    for name in (properties.MODE, properties.QUOTA, properties.BOOT_MARKER, properties.SETTLE,
                 properties.STATE, properties.REASON, *properties.MODES,
                 *(state.value for state in manifest.ImageState)):
        assert f'``{name}``' in text


def test_pages_name_every_step_and_phase():
    text = (PAGES / 'tiers.rst').read_text()
    assert [step.name for step in placement.PlanStep if f'``{step.name}``' not in text] == []
    text = (PAGES / 'settling.rst').read_text()
    assert [phase.value for phase in PivotPhase if f'* - ``{phase.value}``' not in text] == []


def messages() -> list[re.Pattern[str]]:
    """Return the texts of the three packages that can be log lines, with any value anywhere."""
    found = []
    for package in PACKAGES:
        for path in (TOP / package).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) \
                        and ' ' in node.value and '\n' not in node.value:
                    pieces = re.split(r'%(?:\.\d)?[sdf]', node.value)
                    # One that is all values would be any line.
                    if sum(map(len, pieces)) > 20:
                        found.append(re.compile('.+'.join(map(re.escape, pieces))))
    return found


@pytest.mark.parametrize('page', ['tiers', 'settling'])
def test_log_lines_that_pages_name_are_logged(page):
    known = messages()
    tables = re.findall(r'   \* - line\n(.*?)\n(?=\S|$)', (PAGES / f'{page}.rst').read_text(),
                        re.DOTALL)
    lines = [' '.join(line.split()) for table in tables
             for line in re.findall(r'\* - ``(.*?)``', table, re.DOTALL)]
    assert len(lines) > 5
    prefixes = ('', 'bootcache: ', 'image ...: ', 'disk: ')
    assert [line for line in lines
            if not any(message.fullmatch(prefix + line) for message in known
                       for prefix in prefixes)] == []


def test_commands_that_pages_name_exist():
    entries = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['entry-points']
    known = {name.replace('_', ' ') for name in entries['bootcache.cli']} | {'working-set'}
    known |= {name.split()[0] for name in known}
    for page in [*PAGES.glob('*.rst'), TOP / 'README.md']:
        for command in re.findall(r'(?:^ +|^|``)bootcache ((?:image )?[a-z-]+)\b', page.read_text(),
                                  re.MULTILINE):
            # "bootcache is" begins a sentence.
            assert command in known | {'is'}, (page.name, command)


@pytest.mark.parametrize('script', ['demo', 'test', 'bench', 'faults'])
def test_options_of_scripts_that_pages_name_exist(script):
    told = subprocess.run([str(TOP / 'tools' / f'{script}.sh'), '--help'], text=True, check=True,
                          stdout=subprocess.PIPE).stdout
    named = set()
    for page in [*PAGES.glob('*.rst'), TOP / 'README.md', TOP / 'CONTRIBUTING.md']:
        for line in re.findall(rf'tools/{script}\.sh([^`#\n]*)', page.read_text()):
            named |= set(re.findall(r'--[a-z-]+', line))
    assert not {name for name in named if not re.search(rf'{name}\b', told)}


def test_snapshots_do_not_inherit_what_the_service_sets():
    text = (PAGES / 'install.rst').read_text()
    line = next(line for line in text.splitlines() if 'non_inheritable_image_properties' in line)
    assert {properties.STATE, properties.REASON} <= set(line.split('=')[1].strip().split(','))


# systemd units.

def unit(name: str) -> list[str]:
    """Return a unit's lines, continued ones joined."""
    text = (UNITS / name).read_text().replace('\\\n', ' ')
    return [' '.join(line.split()) for line in text.splitlines() if not line.startswith('#')]


def test_the_unit_of_the_gateway_runs_what_the_driver_would_start(tmp_path):
    binary = tmp_path / 'daemon'
    binary.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/arguments\n')
    binary.chmod(0o755)
    daemon = StorageDaemon('gateway', str(tmp_path), UnixListener(f'{tmp_path}/gateway.sock'),
                           binary=str(binary))
    with pytest.raises(exception.StorageDaemonError):
        daemon.ensure_running()
    wanted = (tmp_path / 'arguments').read_text().replace(str(tmp_path), '/run/bootcache').split()
    start = next(line for line in unit('bootcache-gateway.service')
                 if line.startswith('ExecStart='))
    assert start.split()[1:] == wanted
    options = {opt.dest: opt.default for opt in [*shared_conf.opts, *nova_conf.opts]}
    assert options['gateway_run_dir'] == '/run/bootcache'
    assert options['gateway_socket'] == '/run/bootcache/gateway.sock'


def test_the_unit_of_connectors_is_what_the_driver_asks():
    lines = unit('bootcache-connectors.service')
    start = next(line for line in lines if line.startswith('ExecStart='))
    program, run_dir = start.removeprefix('ExecStart=').split()
    scripts = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['scripts']
    assert scripts[pathlib.Path(program).name] == f'{supervisor.__name__}:main'
    options = {opt.dest: opt.default for opt in nova_conf.opts}
    assert run_dir == options['gateway_run_dir']
    # One that was killed finds its connectors, through which guests read: they are there, and run.
    assert {'KillMode=process', 'UMask=0077', 'Restart=always',
            'RuntimeDirectoryPreserve=yes'} <= set(lines)
    # The gateway connects to their sockets.
    gateway = unit('bootcache-gateway.service')
    for name in 'User=', 'Group=', 'RuntimeDirectory=', 'RuntimeDirectoryMode=':
        assert next(line for line in gateway if line.startswith(name)) in lines


def test_gateway_unit_keeps_the_monitor_to_itself():
    lines = unit('bootcache-gateway.service')
    assert 'UMask=0077' in lines
    opened = 'chmod 0660 /run/bootcache/gateway.sock'
    assert any(line.startswith('ExecStartPost=') and opened in line for line in lines)
    assert {'Restart=always', 'StartLimitIntervalSec=0',
            'RuntimeDirectoryPreserve=yes'} <= set(lines)


def test_the_exporter_outlives_the_storage_service():
    lines = unit('glance-bootcache.service')
    assert {'KillMode=process', 'RuntimeDirectoryPreserve=yes', 'User=glance'} <= set(lines)


def test_the_state_directory_is_no_mount_of_its_own():
    """systemd makes it one where an option gives the service mounts of its own."""
    lines = unit('glance-bootcache.service')
    options = {opt.dest: opt.default for opt in glance_conf.opts}
    user, group = (next(line.partition('=')[2] for line in lines if line.startswith(name))
                   for name in ('User=', 'Group='))
    assert (f'ExecStartPre=+/usr/bin/install -d -o {user} -g {group} -m 0750'
            f' {options["state_dir"]}') in lines
    assert f'RequiresMountsFor={options["state_dir"]}' in lines
    assert 'ProtectSystem=full' in lines
    assert not {'ProtectSystem=strict', 'DynamicUser=yes'} & set(lines)
    assert not [line for line in lines if re.match(
        '(State|Cache|Logs|Configuration)Directory|(Read|BindR)\\w*Paths', line)]


@pytest.mark.skipif(not shutil.which('systemd-analyze'), reason='systemd-analyze is missing')
def test_the_exchange_has_a_folder_of_its_own_and_bounds():
    lines = unit('bootcache-exchange.service')
    options = {opt.dest: opt.default for opt in shared_conf.opts}
    assert options['exchange_socket'] == '/run/bootcache-exchange/control.sock'
    assert {'RuntimeDirectory=bootcache-exchange', 'RuntimeDirectoryMode=0700'} <= set(lines)
    assert any(line.startswith('MemoryMax=') for line in lines)
    gateway = unit('bootcache-gateway.service')
    assert next(line for line in gateway if line.startswith('User=')) in lines


@pytest.mark.parametrize('name', ['bootcache-gateway.service', 'glance-bootcache.service',
                                  'bootcache-exchange.service', 'bootcache-connectors.service'])
def test_units_are_valid(tmp_path, name):
    # The programs need not be installed where the tests run.
    copy = tmp_path / name
    copy.write_text(re.sub(r'(?<=ExecStart=)\S+', '/bin/true', (UNITS / name).read_text()))
    done = subprocess.run(['systemd-analyze', 'verify', '--man=no', str(copy)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert name not in done.stderr


LIBVIRTS = ('libvirt-guests.service', 'virt-guest-shutdown.target')


@pytest.mark.skipif(not shutil.which('systemd-analyze'), reason='systemd-analyze is missing')
@pytest.mark.parametrize('name', ['bootcache-gateway.service', 'bootcache-connectors.service'])
def test_guests_can_read_until_they_have_shut_down(tmp_path, name):
    """What systemd makes of the units: what starts before something is stopped after it.

    libvirt-guests shuts guests down; the scopes of QEMU's processes end before the target does.
    """
    for libvirts in LIBVIRTS:
        source = pathlib.Path('/lib/systemd/system', libvirts)
        if not source.exists():
            pytest.skip('libvirt is not installed')
        shutil.copy(source, tmp_path)
    (tmp_path / name).write_text(
        re.sub(r'(?<=ExecStart=)\S+', '/bin/true', (UNITS / name).read_text()))
    done = subprocess.run(
        ['systemd-analyze', 'verify', '--man=no', *map(str, tmp_path.iterdir())],
        env={**os.environ, 'LC_ALL': 'C', 'SYSTEMD_LOG_LEVEL': 'debug',
             'SYSTEMD_UNIT_PATH': f'{tmp_path}:'},
        capture_output=True, text=True, timeout=60, check=True)
    found = {unit.partition(':')[0]: unit for unit in done.stdout.split('-> Unit ')}
    assert all(f'\tAfter: {name} ' in found[libvirts] for libvirts in LIBVIRTS)
    assert f'\tBefore: {LIBVIRTS[0]} ' in found[LIBVIRTS[1]], 'libvirt\'s own order is there too'
    assert 'ordering cycle' not in done.stderr


# The pages themselves.

@pytest.mark.parametrize('builder', ['html', 'man'])
def test_pages_build_without_warnings(tmp_path, builder):
    pytest.importorskip('sphinx')
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-m', 'sphinx', '-q', '-W', '--keep-going', '-b', builder,
         '-d', str(tmp_path / 'doctrees'), str(PAGES), str(tmp_path / 'out')],
        cwd=TOP, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    if builder == 'man':
        assert {path.name for path in (tmp_path / 'out').glob('*.1')} \
            == {f'{name}.1' for name in ('bootcache', 'glance-bootcache', 'bootcache-manage',
                                         'bootcache-status')}
        page = (tmp_path / 'out' / 'bootcache.1').read_text().replace('\\-', '-')
        assert 'working-set plot' in page
    else:
        assert 'Daily commands' in (tmp_path / 'out' / 'contributing.html').read_text()


def test_release_notes_can_be_read():
    yaml = pytest.importorskip('yaml')
    notes = list((TOP / 'releasenotes' / 'notes').glob('*.yaml'))
    assert notes
    sections = {'prelude', 'features', 'upgrade', 'deprecations', 'critical', 'security', 'fixes',
                'issues', 'other'}
    for note in notes:
        assert re.search(r'-[0-9a-f]{16}\.yaml$', note.name)
        assert set(yaml.safe_load(note.read_text())) <= sections


# The threat model.

def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the tests that a page names: file, and function or an empty string."""
    return re.findall(r'``(tests/[\w/]+\.py)(?:::(\w+))?``', text)


def test_every_test_that_the_threat_model_names_exists():
    text = (PAGES / 'security.rst').read_text()
    found = named_tests(text)
    assert len(found) > 40
    missing = []
    for name, function in found:
        path = TOP / name
        functions = {node.name for node in ast.walk(ast.parse(path.read_text()))
                     if isinstance(node, ast.FunctionDef)} if path.exists() else set()
        if not path.exists() or (function and function not in functions):
            missing.append((name, function))
    assert missing == []


@pytest.mark.parametrize(('section', 'places'), [
    ('What each listener offers', ('exporter', 'gateway', 'monitors', 'RPC', 'notifications')),
    ('What an attacker in each place can do', (
        'tenant', 'image', 'guest that took over its QEMU', 'compute host', 'storage network',
        'message bus', 'storage node'))])
def test_every_line_of_the_threat_model_names_a_test(section, places):
    text = (PAGES / 'security.rst').read_text().split(f'{section}\n===')[1].split('\n==')[0]
    rows = re.split(r'^   \* - ', text, flags=re.MULTILINE)[2:]
    assert [row for row in rows if not any(function for _name, function in named_tests(row))] == []
    assert [place for place in places
            if not any(place in row.split('\n     - ')[0] for row in rows)] == []


# What promises nothing says so with its first words.
PROMISES_NOTHING = re.compile(r'\* (Not prevented|As stock|Measured):? ')


def test_every_claim_below_the_threat_model_s_tables_names_a_test():
    text = (PAGES / 'security.rst').read_text()
    parts = re.split(r'^([^\n]+)\n=+$', text, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    for heading in list(sections)[:list(sections).index('Hostile images')]:
        del sections[heading]
    assert len(sections) > 7
    assert [heading for heading, body in sections.items() if not named_tests(body)] == []
    claims = [re.split(r'\n\n(?=\S)', claim)[0] for body in sections.values()
              for claim in re.split(r'^(?=\* )', body, flags=re.MULTILINE)[1:]]
    assert len(claims) > 35
    assert [' '.join(claim.split())[:70] for claim in claims
            if not PROMISES_NOTHING.match(claim) and not named_tests(claim)] == []
