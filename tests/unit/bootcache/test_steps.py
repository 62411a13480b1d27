"""The steps at which faults are tried: those in the code are those in the table."""

import ast
import collections
from pathlib import Path

import pytest

from bootcache import steps

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ('bootcache', 'glance_bootcache', 'nova_bootcache')


def named():
    """Return the names of steps in the code, with the packages that have them."""
    found = collections.defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) \
                        and node.func.attr == 'reached' \
                        and ast.unparse(node.func.value) == 'steps':
                    [name] = node.args
                    assert isinstance(name, ast.Constant), f'{path}: a name is written out'
                    found[name.value].append(package)
    return found


def test_steps_of_the_code_are_those_of_the_table():
    found = named()
    assert set(found) == {step.name for step in steps.TABLE}
    assert [name for name, places in found.items() if len(places) > 1] == []
    assert len({step.name for step in steps.TABLE}) == len(steps.TABLE)


def test_a_step_is_in_the_code_of_the_process_that_comes_to_it():
    packages = {steps.Process.HOST: {'nova_bootcache', 'bootcache'},
                steps.Process.STORAGE: {'glance_bootcache', 'bootcache'}}
    found = named()
    for step in steps.TABLE:
        assert set(found[step.name]) <= packages[step.process]


def test_without_a_hook_a_step_does_nothing():
    assert steps._hook is None
    steps.reached('chain: made')


def test_nobody_but_the_harness_installs_a_hook():
    for package in (*PACKAGES, 'tools'):
        for path in (ROOT / package).rglob('*.py'):
            text = path.read_text()
            assert 'steps.install' not in text or path.name == 'steps.py', path


def test_a_hook_is_told_of_each_step(request):
    request.addfinalizer(lambda: steps.install(None))
    heard = []
    steps.install(heard.append)
    steps.reached('chain: made')
    steps.install(None)
    steps.reached('settle: marked')
    assert heard == ['chain: made']


@pytest.mark.parametrize('step', steps.TABLE, ids=lambda step: step.name)
def test_a_step_says_what_comes(step):
    area, colon, what = step.name.partition(': ')
    assert area and colon and what and step.coming
