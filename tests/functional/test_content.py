"""An image id that gets another content, as after a database was restored: nothing is mixed."""

import dataclasses
import json
import os
import subprocess

import pytest
from compute_host import boot, compare, fetched
from functional_tools import qemu_img
from storage_node import IMAGE, MIB, SIZE

from bootcache import exception, naming
from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
OLD, NEW = 'sha512:' + 'ab' * 64, 'sha512:' + 'cd' * 64


@pytest.fixture
def host(hosts, node):
    """A host whose servers have all settled, until a test says otherwise."""
    node.manifest = node.manifest.making(base_export=naming.content_export_name(IMAGE, OLD))
    made = hosts()
    made.service.extra = {'image_hash': OLD}
    made.needs.note_unsettled([])
    return made


def build(node):
    export = node.manifest.made.base_export
    node.build(*SET)
    node.exporter.retire(IMAGE, with_base=True)
    node.manifest = node.manifest.making(base_export=export)
    node.serve()


@pytest.fixture
def change(host, node, make_base, directory):
    """Gives the image another content, as glance_bootcache.images.imagework.get_base does."""
    def change(size=SIZE, connected=False):
        if not connected:
            # The storage service takes no new content before hosts have let go of the older one.
            assert host.gateway.remove_base(IMAGE)
            # What nobody reads is connected for some minutes more.
            socket = host.connections.socket(node.manifest.made.base_export)
            os.utime(socket, (0, 0), follow_symlinks=False)
            host.upkeep.connect_bases()
        node.exporter.retire(IMAGE, with_base=True)
        node.base = make_base(f'{directory}/store/other', size, [(0, size, 'data')], 'qcow2',
                              seed=9)
        node.cache_path = ''
        node.manifest = node.manifest.making(base_path=node.base, cache_image=None,
            virtual_bytes=size, base_export=naming.content_export_name(IMAGE, NEW))
        if not connected:
            node.serve()
        host.service.extra = {'image_hash': NEW}

    return change


def warm(host, node, directory):
    build(node)
    assert boot(host, f'{directory}/one') is True
    compare(f'{directory}/one', node)


def forget_the_hash(host):
    """As of a storage service that did not tell it."""
    path = f'{host.cache.path(IMAGE)}.json'
    with open(path) as stream:
        document = json.load(stream)
    assert document['image_hash']
    document['image_hash'] = ''
    with open(path, 'w') as stream:
        json.dump(document, stream)


@pytest.mark.parametrize('kind', ['warm', 'cold'])
@pytest.mark.parametrize('named', [True, False])
def test_where_no_server_needs_the_older_content_it_goes(host, node, directory, change, kind,
                                                         named):
    """The second server's disk has the new content, all of it."""
    if kind == 'warm':
        build(node)
    else:
        node.serve()
    assert boot(host, f'{directory}/one') is True
    old = host.cache.known(IMAGE)
    assert old.remote.image_hash == OLD
    # Somebody has opened its disk, or it would be about to.
    os.utime(f'{directory}/one')
    if not named:
        forget_the_hash(host)
    change()
    assert boot(host, f'{directory}/two') is True
    compare(f'{directory}/two', node)
    assert host.cache.known(IMAGE).remote.image_hash == NEW


def test_where_a_server_stands_on_it_new_ones_go_the_stock_way(host, node, directory, change):
    warm(host, node, directory)
    before = host.cache.entry(IMAGE)
    os.utime(f'{directory}/one')
    host.needs.note_unsettled([IMAGE])
    change()
    assert boot(host, f'{directory}/two') is False
    assert host.cache.entry(IMAGE) == before and not os.path.exists(f'{directory}/two')
    # Its own next start fails clearly, as its base is nowhere any more.
    with pytest.raises(exception.BootcacheError, match='has another content now'):
        host.chains.keep_chain(IMAGE, f'{directory}/one')
    host.upkeep.once()
    assert host.cache.entry(IMAGE) == before
    # The database is put right: it goes on.
    node.exporter.retire(IMAGE, with_base=True)
    node.base = f'{directory}/store/base'
    node.manifest = node.manifest.making(base_path=node.base, virtual_bytes=SIZE,
        base_export=naming.content_export_name(IMAGE, OLD))
    node.serve()
    host.service.extra = {'image_hash': OLD}
    host.chains.keep_chain(IMAGE, f'{directory}/one')
    compare(f'{directory}/one', node)


def test_what_is_lost_is_not_replaced_by_another_content(host, node, directory, change):
    """As the file of a memory tier when the host reboots: a server's disk stands on it."""
    warm(host, node, directory)
    os.unlink(host.cache.path(IMAGE))
    change(SIZE + MIB)
    with pytest.raises(exception.BootcacheError, match='has another content now'):
        host.chains.keep_chain(IMAGE, f'{directory}/one')
    assert not os.path.exists(host.cache.path(IMAGE))


def test_neither_fetched_nor_made_nor_noted(host, node, directory, change):
    warm(host, node, directory)
    entry = host.cache.known(IMAGE)
    other = dataclasses.replace(node.remote(), image_hash=NEW)
    for act in (lambda: host.fetches.make_empty(other, SIZE),
                lambda: host.cache.update(entry, other, False, 0),
                lambda: fetched(host.fetches, other, entry.cache_image, 'none')):
        with pytest.raises(exception.BootcacheError, match='has another content now'):
            act()
    assert host.cache.known(IMAGE) == entry
    host.cache.check_stored(IMAGE, OLD, entry.remote.export)
    with pytest.raises(exception.BootcacheError, match='has another content now'):
        host.cache.check_stored(IMAGE, NEW, '')
    forget_the_hash(host)
    host.cache.check_stored(IMAGE, OLD, entry.remote.export)
    with pytest.raises(exception.BootcacheError, match='has another content now'):
        host.cache.check_stored(IMAGE, NEW, naming.content_export_name(IMAGE, NEW))


def test_a_gateway_does_not_serve_one_content_for_another(host, node, directory, change):
    warm(host, node, directory)
    guest = subprocess.Popen(['qemu-io', '-r', '-f', 'qcow2', f'{directory}/one'],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        guest.stdin.write('read 5M 4k\n')
        guest.stdin.flush()
        assert guest.stdout.readline()
        before = node.remote().export
        change(connected=True)
        other = dataclasses.replace(node.remote(), image_hash=NEW)
        with pytest.raises(exception.BootcacheError, match='is not served now'):
            host.gateway.ensure_base(other)
        assert host.gateway.present([IMAGE])[IMAGE].content == before
    finally:
        guest.communicate('quit\n')


def test_a_storage_node_names_the_content_of_what_it_exports(node):
    """A gateway that connects again to an older content's name gets nothing, not another one."""
    node.manifest = node.manifest.making(base_export=naming.content_export_name(IMAGE, OLD))
    node.serve()
    assert node.exports == {f'base-{IMAGE}-{"ab" * 8}'}
    assert node.answer()['base_export'] == f'base-{IMAGE}-{"ab" * 8}'
    # Kept for servers that read it when the image is withdrawn, as before.
    assert node.exporter.retire(IMAGE, with_base=False) is False and len(node.exports) == 1
    assert node.exporter.retire(IMAGE, with_base=True) is True and not node.exports
    with pytest.raises(subprocess.CalledProcessError):
        qemu_img('info', f'nbd://127.0.0.1:{node.conf.export_port}/base-{IMAGE}')
