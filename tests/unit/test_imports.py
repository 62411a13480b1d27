"""The house's rules, read off the source: imports run one way, and what is public is described."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob('*.py'))
FORBIDDEN = {
    'bootcache': {'nova', 'glance', 'nova_bootcache', 'glance_bootcache'},
    'glance_bootcache': {'nova', 'nova_bootcache'},
    'nova_bootcache': {'glance', 'glance_bootcache'},
}
# Who may use what Nova does not promise to keep; tests/unit/test_nova_internals.py fences it.
NOVA_INTERNALS = {'nova_bootcache/novadriver/driver.py',
                  'nova_bootcache/novadriver/imagebackend.py',
                  'nova_bootcache/novadriver/diskconf.py',
                  'nova_bootcache/novadriver/downloads.py',
                  'nova_bootcache/novadriver/errorpolicy.py',
                  'nova_bootcache/novadriver/directsnapshots.py',
                  'nova_bootcache/novadriver/novaservers.py',
                  'nova_bootcache/novadriver/rootdisks.py',
                  'nova_bootcache/novadriver/signatures.py',
                  'nova_bootcache/scheduler/hostwarmth.py', 'nova_bootcache/scheduler/weights.py',
                  'nova_bootcache/scheduler/filters.py',
                  'nova_bootcache/scheduler/imagefacts.py'}


def name(path):
    return str(path.relative_to(ROOT))


def imports(tree):
    """Return the top-level names of all modules that a file imports, also within functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'imports are absolute'
            found.add((node.module or '').split('.')[0])
    return found


def undescribed(tree):
    """Yield the public classes, functions and methods without a docstring."""
    def walk(body, prefix):
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) \
                    or node.name.startswith('_'):
                continue
            if not ast.get_docstring(node):
                yield f'{prefix}{node.name}'
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f'{prefix}{node.name}.')
    return list(walk(tree.body, ''))


def test_the_packages_are_there():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize('path', FILES, ids=name)
def test_imports_run_one_way(path):
    package = path.relative_to(ROOT).parts[0]
    found = imports(ast.parse(path.read_text()))
    assert not found & FORBIDDEN[package]
    if 'nova' in found:
        assert name(path) in NOVA_INTERNALS


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imported(path, modules):
    """Return the modules of ours that a file imports as it is imported itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f'{node.module}.{alias.name}'
                found.add(whole if whole in modules else node.module)
    return (found & modules) - {module_name(path)}


def room(module):
    """Return the folder of a module within its package; one that is in none is its own."""
    parts = module.split('.')
    return '.'.join(parts[:2])


@pytest.mark.parametrize('package', PACKAGES)
def test_rooms_and_modules_stand_on_each_other_without_a_circle(package):
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == package]
    modules = {module_name(path) for path in files} - {package}
    between_modules = {module_name(path): imported(path, modules) for path in files}
    between_rooms = {}
    for module, others in between_modules.items():
        between_rooms.setdefault(room(module), set()).update(
            {room(other) for other in others} - {room(module)})
    for edges in (between_modules, between_rooms):
        # Raises where there is one, and names it.
        list(graphlib.TopologicalSorter(edges).static_order())


def test_only_their_own_tests_use_the_benchmarks():
    found = {name(path): imports(ast.parse(path.read_text()))
             for folder in (*PACKAGES, 'bench', 'tests', 'tools')
             for path in (ROOT / folder).rglob('*.py')}
    users = {where for where, modules in found.items() if 'bench' in modules
             and not where.startswith(('bench/', 'tests/unit/bench/'))}
    assert users == {'tests/functional/test_fairness.py', 'tests/functional/test_faults.py',
                     'tests/functional/test_fuzz.py', 'tests/functional/test_gateways.py',
                     'tests/functional/test_replay.py',
                     'tests/functional/test_service_bench.py',
                     'tests/functional/test_snapshot_boots.py'}
    assert not [where for where, modules in found.items()
                if where.startswith('bench/') and 'tests' in modules]


@pytest.mark.parametrize('first', ['glance_bootcache.hook', 'glance_bootcache.filestore.driver',
                                   'glance_bootcache.cli.main', 'nova_bootcache'])
def test_glance_compute_hosts_and_the_command_need_no_database(first):
    """``bootcache[storage]`` is for storage nodes."""
    modules = {module_name(path): path for path in FILES}
    reached, ahead = set(), [name for name in modules if name == first
                             or name.startswith(f'{first}.')]
    while ahead:
        if (name := ahead.pop()) not in reached:
            reached.add(name)
            ahead += imported(modules[name], set(modules))
    assert [name for name in sorted(reached) if imports(ast.parse(modules[name].read_text()))
            & {'alembic', 'oslo_db', 'oslo_upgradecheck', 'sqlalchemy'}] == []


@pytest.mark.parametrize('module', ['glance_bootcache.cli.service', 'glance_bootcache.cli.main',
                                    'glance_bootcache.cli.manage', 'glance_bootcache.cli.status',
                                    'glance_bootcache.cli.storagenode',
                                    'glance_bootcache.hook', 'nova_bootcache.novadriver.driver',
                                    'nova_bootcache.scheduler.filters',
                                    'nova_bootcache.scheduler.weights'])
def test_a_program_can_begin_with_it(module):
    """In a process of its own: modules that import each other fail by who comes first."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', f'import {module}'], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('path', FILES, ids=name)
def test_what_is_public_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), 'the module itself'
    assert undescribed(tree) == []


@pytest.mark.parametrize('source, found', [
    ('import nova.conf', {'nova'}), ('from nova import conf', {'nova'}),
    ('def f():\n    from glance.api import x as y', {'glance'}), ('import a, b.c', {'a', 'b'})])
def test_no_import_is_overlooked(source, found):
    assert imports(ast.parse(source)) == found


@pytest.mark.parametrize('source, found', [
    ('def f(): pass', ['f']), ('class A:\n    """Yes."""\n    def m(self): pass', ['A.m']),
    ('def _f(): pass', []), ('async def f(): pass', ['f']), ('def f():\n    """Yes."""', [])])
def test_no_missing_docstring_is_overlooked(source, found):
    assert undescribed(ast.parse(source)) == found


# Nova's scheduler is another process.
@pytest.mark.parametrize('path', [path for path in FILES if name(path).startswith('nova_bootcache/')
                                  and '/scheduler/' not in name(path)], ids=name)
def test_locks_of_a_compute_host_know_their_turn(path):
    """Those of bootcache/locks.py do, and nova_bootcache/locks.py has the order."""
    plain = [node.attr for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
             and node.value.id == 'threading' and node.attr in ('Lock', 'RLock', 'Condition')]
    assert plain == []


def test_a_public_class_has_a_name_of_its_own():
    """Two of one name are taken for each other, in logs and in talk."""
    owners = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
                owners.setdefault(node.name, []).append(name(path))
    assert {found: paths for found, paths in owners.items() if len(paths) > 1} == {}


def test_no_file_is_longer_than_one_purpose_takes():
    found = {name(path): len(path.read_text().splitlines())
             for folder in (*PACKAGES, 'bench', 'tests', 'tools')
             for kind in ('*.py', '*.sh') for path in (ROOT / folder).rglob(kind)}
    assert len(found) > 300
    assert {path: lines for path, lines in found.items() if lines > 800} == {}


def test_files_of_tests_that_run_together_have_names_of_their_own():
    """pytest imports them by these, and refuses the second one."""
    paths = [path for path in (ROOT / 'tests' / 'unit').rglob('*.py')
             if path.stem not in ('__init__', 'conftest')]
    assert len(paths) > 100
    assert sorted(path.stem for path in paths) == sorted({path.stem for path in paths})
