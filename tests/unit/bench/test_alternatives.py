"""Today's alternatives: what runs on a host, and what follows from what was measured."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.replay import host, peers, peers_today, report
from bench.replay.host import Image
from bench.replay.rows import alternatives

HEAD = {'row': 'alternatives', 'run': 'alternatives today', 'cpus': 2, 'setting': {
    'repeats': 2, 'rate': 10 ** 9, 'scale': 0.1, 'dilation': 1.0, 'stands_for': 'a cloud',
    'not_measured': {'dm-clone': 'no such device'}}}
IMAGE = Image('an-id', {'server': ('10.77.0.1', 10810), 'base_export': 'base-x',
                        'virtual_bytes': 1 << 20}, 'qcow2')
COLD_LABELS = 'on demand', 'nbdkit cow cold', 'nbdkit cache cold', 'qemu-img convert cold', \
    'QEMU copy-on-read cold'
WARM_LABELS = 'nbdkit cow warm', 'nbdkit cache warm', 'qemu-img convert warm', \
    'QEMU copy-on-read another server'


def run(label, repeat, seconds, base=0, cache=0, hosts=1, digests=(5,)):
    traffic = {kind: {'requests': 1, 'bytes': size}
               for kind, size in (('base', base), ('cache', cache)) if size}
    return {'label': label, 'repeat': repeat, 'image': 'small', 'seconds': seconds, 'hosts': hosts,
            'traffic': traffic, 'copied_bytes': 0, 'host_bytes': 1, 'disk_seconds': 0.1,
            'player_cpu_seconds': 0.2, 'chain_cpu_seconds': 0.2, 'host_cpu_seconds': 0.3,
            'digests': list(digests)}


def a_run(cold=1.5):
    runs = []
    for repeat in range(2):
        runs += [run('local raw', repeat, 1), run('bootcache warm', repeat, 1.01),
                 run('bootcache cold', repeat, cold, cache=31_000_000),
                 run('bootcache first', repeat, 1.6, base=30_000_000),
                 *(run(label, repeat, 1.7, base=30_000_000) for label in COLD_LABELS),
                 *(run(label, repeat, 1.2) for label in WARM_LABELS)]
    return runs


def test_nbdkit_stands_between_the_export_and_the_servers(tmp_path, monkeypatch):
    asked = []

    def start(command, env, **more):
        asked.append((command, env))
        (tmp_path / 'nbdkit.pid').touch()
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(peers_today.subprocess, 'Popen', start)
    monkeypatch.setattr(peers_today.qemuimg, 'create_overlay',
                        lambda *given, **named: asked.append(given))
    host = SimpleNamespace(directory=tmp_path, helpers=[])
    peer = peers_today.NbdkitCow()
    peer.prepare(host, IMAGE, 'cold')
    peer.prepare(host, IMAGE, 'warm')
    assert len(host.helpers) == 1, 'the second server has the same nbdkit'
    (command, env), = asked
    assert command[command.index('nbd') - 1:] == [
        '--filter=cow', 'nbd', 'hostname=10.77.0.1', 'port=10810', 'export=base-x',
        'cow-on-read=true']
    assert env['TMPDIR'] == str(tmp_path)
    peer.disk(host, IMAGE, 'cold')
    assert asked[1][2] == f'nbd+unix:///?socket={tmp_path}/nbdkit'


def test_copy_on_read_is_the_topmost_node(tmp_path, monkeypatch):
    monkeypatch.setattr(peers_today.qemuimg, 'create_overlay', lambda *given, **named: None)
    nodes = peers_today.CopyOnRead().disk(SimpleNamespace(directory=tmp_path), IMAGE, 'cold')
    assert nodes[-1]['driver'] == 'copy-on-read' and nodes[-1]['file'] == nodes[-2]['node-name']


def test_the_base_is_copied_once_a_host(tmp_path, monkeypatch):
    copied = []

    def convert(command, check):
        copied.append(command)
        Path(command[-1]).touch()

    monkeypatch.setattr(peers_today.subprocess, 'run', convert)
    monkeypatch.setattr(peers_today.qemuimg, 'create_overlay', lambda *given, **named: None)
    for _ in range(2):
        peers_today.ConvertQcow2().disk(SimpleNamespace(directory=tmp_path), IMAGE, 'cold')
    command, = copied
    assert command[-3:] == ['qcow2', 'nbd://10.77.0.1:10810/base-x', str(tmp_path / 'base.part')]


@pytest.mark.parametrize(('code', 'out', 'err', 'told'), [
    (1, '', '/dev/mapper/control: open failed: No such device\nmore', 'No such device'),
    (0, 'striped v1.6.0\nlinear v1.4.0\n', '', 'no target named clone')])
def test_why_there_is_no_dm_clone_is_found_by_trying(monkeypatch, code, out, err, told):
    monkeypatch.setattr(peers_today.subprocess, 'run', lambda command, **more:
                        subprocess.CompletedProcess(command, code, out, err))
    assert told in peers_today.dm_clone() and 'more' not in peers_today.dm_clone()


def test_every_way_says_what_it_can():
    known = peers.capabilities()
    columns = set(known['local raw'])
    assert {frozenset(known[label]) for label in (*COLD_LABELS, *WARM_LABELS)} == {
        frozenset(columns)}


def test_every_way_is_in_the_figures():
    labels = {peer.label(phase) for peer in alternatives.ways(True) for phase in peer.phases}
    assert labels == {label for pair in alternatives._WAYS.values() for label in pair if label}


def test_cold_is_compared_with_cold_and_warm_with_warm():
    judged = {one['name']: one for one in alternatives.targets(HEAD, a_run())}
    assert all(one['met'] for one in judged.values())
    for ours, others in (('warm', WARM_LABELS), ('cold', COLD_LABELS), ('first', COLD_LABELS)):
        for other in others:
            assert f'bootcache {ours} over {other}, at worst' in judged
    assert 'bootcache cold over nbdkit cow warm, at worst' not in judged
    assert judged['MB from the storage node for a cold boot']['value'] == 31


def test_one_that_is_slower_is_missed():
    judged = {one['name']: one for one in alternatives.targets(HEAD, a_run(cold=1.8))}
    assert not judged['bootcache cold over nbdkit cow cold, at worst']['met']


def test_what_was_not_measured_is_in_the_page(tmp_path):
    pytest.importorskip('matplotlib')
    rows = alternatives.rows(HEAD, a_run())
    assert rows[-1]['ratio'] is None and 'no such device' in rows[-1]['note']
    names, lines = alternatives.table(rows)
    assert {len(line) for line in lines} == {len(names)}
    assert lines[-1][:2] == ['dm-clone', 'not measured: no such device']
    page = report._section(alternatives, HEAD, rows, alternatives.targets(HEAD, a_run()),
                           alternatives.draw(HEAD, rows, tmp_path))
    assert any('dm-clone: no such device' in line for line in page)
    assert (tmp_path / 'alternatives-small-1-time.svg').exists()


def test_what_a_process_keeps_in_files_without_names_is_counted(tmp_path):
    with open(tmp_path / 'kept', 'wb') as stream:
        stream.write(bytes(range(256)) * 512)
        stream.flush()
        before = host._nameless_bytes(os.getpid())
        (tmp_path / 'kept').unlink()
        assert host._nameless_bytes(os.getpid()) - before >= 128 << 10
