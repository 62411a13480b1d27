"""The manual page's examples run, on a fake of the RPC client; every command has one."""

import pathlib
import re
import shlex

import pytest
from fakes_cli import OTHER, bases, entry_points, held, host, image, node, report

PAGE = pathlib.Path(__file__).resolve().parents[3] / 'doc' / 'source' / 'cli.rst'
EXAMPLES = re.findall(r'^    bootcache (.*)$', PAGE.read_text(), re.MULTILINE)
OF_NODES = re.findall(r'^ +bootcache (.*)$', PAGE.with_name('nodes.rst').read_text(), re.MULTILINE)
# These need QEMU and matplotlib; tests/e2e/test_cli.py runs them.
# And this asks Glance: test_cli_clean.py. This writes files: test_ca.py.
# These ask Nova: tests/e2e/test_deployment.py.
ELSEWHERE = ('build ', 'working-set plot ', 'image clean ', 'ca ', 'snapshot ', 'resume ')


@pytest.mark.parametrize('name', [name.replace('_', ' ') for name in entry_points()])
def test_every_command_has_an_example(name):
    assert any(f'{example} '.startswith(f'{name} ') for example in EXAMPLES)


@pytest.mark.parametrize('example', [example for example in dict.fromkeys([*EXAMPLES, *OF_NODES])
                                     if not example.startswith(ELSEWHERE)])
def test_examples_run(cli, example):
    cli.api.images[OTHER] = image(OTHER)
    cli.api.hosts = [host('compute7', 1)]
    cli.api.nodes = [node('storage-2'), node('storage-3')]
    cli.api.bases['compute7'] = bases(1, (OTHER, '10.0.0.5:10810', 'a-0', 1e9, None))
    cli.api.where[OTHER] = {'storage': 'disk', 'hosts': [held('compute7')], 'exchanged': [
        {'file': 'cache image', 'size': 4, 'to': 'compute7', 'way': 'exchanged', 'copied': 0,
         'got': [['', 4]]}]}
    cli.api.warming[OTHER] = [report(name, True, compute7=('cached', 1, ''))
                              for name in ('racks', 'edge')]
    cli.time.after(2, lambda: cli.api.where[OTHER]['hosts'].clear())
    done = cli(*shlex.split(example))
    assert done.code == 0, done.err
    assert any(word in done.out for word in ('compute7', 'storage', OTHER, '65536'))


def test_outcomes_are_described():
    from glance_bootcache.cli import evict
    words = [evict.GONE, evict.NOT_HELD, evict.LEAVING, evict.IN_USE, evict.SILENT, evict.KEPT]
    text = PAGE.read_text()
    assert [word for word in words if f'* - ``{word}``' not in text] == []


def test_outcomes_of_deployments_are_described():
    from glance_bootcache.deployment import checkpoint, resuming
    words = [*checkpoint.Status, resuming.STARTED, resuming.THERE, resuming.FAILED]
    text = PAGE.read_text()
    assert [word for word in words if f'``{word}``' not in text] == []
