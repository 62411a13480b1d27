"""What is required and what is imported are the same; a tree without git knows its version."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from glance_bootcache.cli import storagenode

TOP = Path(__file__).resolve().parents[2]
PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
# Names of modules, where the distribution has another one.
DISTRIBUTIONS = {'glanceclient': 'python-glanceclient', 'novaclient': 'python-novaclient',
                 'qemu': 'qemu.qmp'}
# What the extra ``storage`` has: for the storage service, and nothing else.
STORAGE = {'alembic', 'oslo_db', 'oslo_middleware', 'oslo_upgradecheck', 'sqlalchemy'}
# Not required: the services beside which it is installed, Debian's bindings (install.rst says where
# they come from), and extras.
ELSEWHERE = {'nova', 'glance', 'glance_store', 'nbd', 'libvirt', 'matplotlib', 'libtorrent',
             *STORAGE}


def imported(packages=PACKAGES):
    """The modules of others that packages of ours import, without the standard library's."""
    found = set()
    for path in (path for package in packages for path in (TOP / package).rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module.split('.')[0])
            elif isinstance(node, ast.Import):
                found |= {alias.name.split('.')[0] for alias in node.names}
    return found - sys.stdlib_module_names - set(PACKAGES) - ELSEWHERE


def required():
    """The distributions that requirements.txt names."""
    lines = (TOP / 'requirements.txt').read_text().splitlines()
    return sorted(re.match(r'[\w.-]+', line)[0] for line in lines if not line.startswith('#'))


def distribution(module):
    return DISTRIBUTIONS.get(module, module.replace('oslo_', 'oslo.'))


def test_what_is_imported_is_required_and_nothing_else():
    assert sorted(map(distribution, imported())) == required()


def test_the_storage_extra_is_what_the_database_imports():
    extras = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['optional-dependencies']
    assert {Requirement(line).name.lower() for line in extras['storage']} == {
        distribution(module) for module in STORAGE}
    assert set(storagenode.MODULES) == STORAGE


@pytest.mark.parametrize('program, code', [
    ('glance-bootcache', 1), ('bootcache-manage', 1), ('bootcache-status', 255)])
def test_a_program_without_the_storage_extra_says_what_to_install(program, code):
    scripts = tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['scripts']
    module, _, function = scripts[program].partition(':')
    # As they are where these are not installed.
    absent = f'sys.modules.update(dict.fromkeys({sorted(STORAGE)}))'
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', f'import sys; {absent}; import {module} as module;'
         f' sys.exit(module.{function}())'], cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.splitlines() == [
        f'{program}: alembic, oslo_db, oslo_middleware, oslo_upgradecheck, sqlalchemy: not'
        f' installed; a storage node needs bootcache[storage]: {sys.prefix}/bin/pip install'
        ' "bootcache[storage]"']


def normal(name):
    return re.sub('[-_.]+', '-', name).lower()


def with_what_it_requires(name, found):
    """Add a distribution that is installed, and all that it requires, to what was found."""
    if normal(name) not in found:
        found.add(normal(name))
        for required in map(Requirement, metadata.requires(name) or []):
            if not required.marker or required.marker.evaluate({'extra': ''}):
                with_what_it_requires(required.name, found)
    return found


def test_the_page_names_what_nova_does_not_bring():
    """For releases beside which the package is installed without what it requires."""
    page = (TOP / 'doc' / 'source' / 'install.rst').read_text()
    pip = '/opt/nova/bin/pip install'
    named = re.search(rf'{pip} (.+)\n +{pip} --no-deps', page)[1].split()
    there = with_what_it_requires('nova', {Requirement(text.strip("'")).name for text in named})
    needed = {normal(distribution(module)) for module in imported(('bootcache', 'nova_bootcache'))}
    assert needed - {normal(name) for name in there} == set()


def test_packages_are_all_that_there_are():
    text = (TOP / 'setup.cfg').read_text()
    listed = set(re.search(r'packages =\n((?: +\S+\n)+)', text)[1].split())
    there = {str(path.parent.relative_to(TOP)).replace('/', '.')
             for package in PACKAGES for path in (TOP / package).rglob('__init__.py')}
    assert listed == there | {'nova.virt.bootcache'}


@pytest.fixture
def export(tmp_path):
    """What setup.py looks at, in a folder without git."""
    tree = tmp_path / 'export'
    tree.mkdir()
    for name in ('setup.py', '.git_archival'):
        shutil.copy(TOP / name, tree)
    return tree


def version(tree, **environment):
    """The version that pbr is told, by a project of nothing but setup.py."""
    program = ('import os, runpy, setuptools; setuptools.setup = lambda: None;'
               ' runpy.run_path("setup.py"); print(os.environ.get("PBR_VERSION"))')
    return subprocess.run([sys.executable, '-c', program], cwd=tree, check=True,
                          env={**environment, 'GIT_CONFIG_NOSYSTEM': '1'},
                          capture_output=True, text=True).stdout.strip()


def test_copy_without_git_has_the_version_that_is_worked_on(export):
    assert re.fullmatch(r'\d+\.\d+\.\d+\.dev0', version(export))


def test_export_names_its_commit(export):
    # What git archive makes of the file, as .gitattributes asks it to.
    assert '.git_archival export-subst' in (TOP / '.gitattributes').read_text().splitlines()
    assert (TOP / '.git_archival').read_text() == 'commit: $Format:%h$\n'
    (export / '.git_archival').write_text('commit: 04829e8\n')
    assert version(export).endswith('.dev0+g04829e8')


def committed(tree):
    """Make a tree a checkout of one commit."""
    for arguments in (('init', '-q'), ('add', '.'), (
            '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit', '-q', '-m', 'all')):
        subprocess.run(['git', '-C', tree, *arguments], check=True)
    return tree


def test_git_and_sdist_are_asked_first(export):
    assert version(committed(export)) == 'None'
    shutil.rmtree(export / '.git')
    (export / 'PKG-INFO').write_text('')
    assert version(export) == 'None'


@pytest.mark.parametrize('environment', [
    {'PATH': '/no/such/folder'}, {'GIT_TEST_ASSUME_DIFFERENT_OWNER': '1'}], ids=str)
def test_a_checkout_that_git_cannot_be_asked_about_has_a_version(export, environment):
    """git is missing, or another user owns the checkout."""
    assert version(committed(export), **environment) == version_of_a_copy(export)


def version_of_a_copy(export):
    """The version of the same without git."""
    shutil.rmtree(export / '.git')
    return version(export)


def test_a_shallow_clone_names_its_commit(export, tmp_path):
    committed(export)
    subprocess.run(['git', '-C', export, '-c', 'user.name=a', '-c', 'user.email=a@b', 'commit',
                    '-q', '--allow-empty', '-m', 'later'], check=True)
    clone = tmp_path / 'clone'
    subprocess.run(['git', 'clone', '-q', '--depth', '1', f'file://{export}', clone], check=True)
    commit = subprocess.run(['git', '-C', clone, 'rev-parse', '--short', 'HEAD'], check=True,
                            capture_output=True, text=True).stdout.strip()
    assert version(clone).endswith(f'.dev0+g{commit}')


def test_build_takes_dependencies():
    # Before 7.1.0 pbr leaves them out, without a word, where there is no setup.cfg of its kind.
    requires = tomllib.loads((TOP / 'pyproject.toml').read_text())['build-system']['requires']
    assert 'pbr>=7.1.0' in requires


# install.rst's checklist for taking it out.

PAGES = TOP / 'doc' / 'source'
TAKING_OUT = (PAGES / 'install.rst').read_text().split('Taking it out\n====')[1]
# bootcache.conf is removed as a whole, as is the section [bootcache] of others' files.
OPTIONS = re.findall(r'^ +(?:# )?(\w+) = ', ''.join(
    section for page in ('install', 'scheduling')
    for section in re.findall(r'^ +\[(?!bootcache|service_auth|database)\w+\](?:\n.*\S.*)+',
                              (PAGES / f'{page}.rst').read_text(), re.M)), re.M)


def test_every_option_that_is_set_is_unset_when_it_is_taken_out():
    assert {'weight_classes', 'available_filters', 'enabled_filters', 'compute_driver', 'topics',
            'image_import_plugins', 'non_inheritable_image_properties'} <= set(OPTIONS)
    # These two are bootcache.conf's.
    left = [name for name in sorted({*OPTIONS} - {'transport_url', 'connection'})
            if not re.search(rf'\b{name}\b', TAKING_OUT)]
    assert left == []
    assert 'the section ``[bootcache]`` goes' in TAKING_OUT


def test_every_file_that_is_made_is_removed_when_it_is_taken_out():
    text = (PAGES / 'install.rst').read_text().split('Taking it out\n====')[0]
    made = set(re.findall(r'(?:cp|ln -s\w*|install|touch|venv) .*?(/(?:etc|opt|usr/local)\S*)$',
                          text, re.M))
    made |= set(re.findall(r'^ +echo .* >(/\S+)$', text, re.M))
    made |= set(re.findall(r'^ +ln -s.*\\\n +(/\S+)$', text, re.M))
    units = {path.name for path in (TOP / 'etc' / 'systemd').iterdir()}
    made = {path for path in made if path != '/etc/systemd/system/'}
    made |= {f'/etc/systemd/system/{unit}' for unit in units}
    assert {'/opt/bootcache', '/usr/local/bin/bootcache', '/etc/bootcache',
            '/usr/lib/python3/dist-packages/bootcache.pth',
            '/usr/lib/python3/dist-packages/nova/virt/bootcache'} <= made
    removed = ' '.join(re.findall(r'^ +rm .*$', TAKING_OUT, re.M)).split()
    assert [path for path in sorted(made)
            if not any(path == name or path.startswith(f'{name}/')
                       # A folder in which there is more.
                       or (path.endswith('/') and name.startswith(path))
                       for name in removed)] == []


def test_what_names_the_package_is_taken_out_before_the_package():
    steps = [TAKING_OUT.index(text) for text in (
        '#. nova-scheduler', '#. Glance', '#. Each compute host', '#. nova-api',
        '#. The storage service', '#. The storage node', '#. RabbitMQ', '#. The package')]
    assert steps == sorted(steps)


# What is done once more, by who upgrades or begins anew.

INSTALLING = (PAGES / 'install.rst').read_text().split('Taking it out\n====')[0]


def test_links_are_made_a_second_time_as_well():
    """Without -f the second is refused; without -n one to a folder is made within that."""
    links = re.findall(r'^ +(ln .*(?:\\\n.*)?)$', INSTALLING, re.M)
    assert len(links) == 8
    assert [link for link in links if not link.startswith(
        'ln -sfn ' if '/shim' in link else 'ln -sf ')] == []


def test_a_configuration_is_not_emptied():
    assert '/dev/null /etc' not in INSTALLING


def test_units_are_there_before_they_are_edited():
    for unit in (path.name for path in (TOP / 'etc' / 'systemd').iterdir()):
        copied = INSTALLING.index(f'systemd/{unit} /etc/systemd/system/')
        name = unit.removesuffix('.service')
        edits = [match.start() for match in re.finditer(f'systemctl edit {name}', INSTALLING)]
        assert edits and min(edits) > copied


def test_earlier_wheels_are_taken_away():
    before, _, _ = INSTALLING.partition('pip install /root/bootcache-')
    assert 'rm -rf dist' in before and 'rm -f /root/bootcache-*.whl' in before


def test_upgrading_names_all_who_have_the_package():
    section = INSTALLING.split('\nUpgrading\n====')[1]
    for part in ('storage service', 'compute host', 'nova-scheduler', 'glance-api'):
        assert re.search(rf'^#\. .*{part}', section, re.M), part
