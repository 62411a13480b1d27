"""What can be installed today that does the same job, each as its manual has it.

nbdkit's filters stand on the host, between the storage node's export and the servers; QEMU's
copy-on-read is in the server's own QEMU; ``qemu-img convert`` copies the base before the boot.
"""

import os
import subprocess
import time
from pathlib import Path

from bench.replay import netns
from bench.replay.host import HostChild, Image
from bench.replay.peers import _OVERLAY, _STOCK_CLUSTER, Nodes, Peer, chain_nodes
from bootcache import naming, qemuimg

COLD, WARM, ANOTHER = 'cold', 'warm', 'another server'
_ALIVE = {'needs the network afterwards': True, 'knows what a boot reads': False}


class _Nbdkit(Peer):
    """An nbdkit on the host, for one image; the servers' overlays are on its socket.

    It goes on running between the phases: a second server of the host has the same one. What it
    keeps is a file without a name below ``TMPDIR``, so it is gone when nbdkit ends.

    :cvar filters: its arguments before the plugin's.
    :cvar options: and after those.
    """

    filters: tuple[str, ...]
    options: tuple[str, ...]

    def prepare(self, host: HostChild, image: Image, phase: str) -> None:
        """Have it run, as the product's gateway does."""
        socket, ready = host.directory / 'nbdkit', host.directory / 'nbdkit.pid'
        if host.helpers:
            return
        address, port = image.answer['server']
        with open(host.directory / 'nbdkit.err', 'wb') as messages:
            process = subprocess.Popen(
                ['nbdkit', '--foreground', '--unix', str(socket), '--pidfile', str(ready),
                 *self.filters, 'nbd', f'hostname={address}', f'port={port}',
                 f'export={image.answer["base_export"]}', *self.options],
                env={**os.environ, 'TMPDIR': str(host.directory)}, stdin=subprocess.DEVNULL,
                stderr=messages, preexec_fn=netns.die_with_parent)
        host.helpers.append(process)
        deadline = time.monotonic() + 20
        # The socket is there before anyone listens on it; this file is written after that.
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                words = (host.directory / 'nbdkit.err').read_text(errors='replace')
                raise RuntimeError(f'nbdkit did not come up: {words[-400:]}')
            time.sleep(0.01)

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the overlay."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes,
                               naming.nbd_unix_uri(str(host.directory / 'nbdkit'), ''), 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        return chain_nodes(overlay, self.direct)


class NbdkitCow(_Nbdkit):
    """nbdkit-cow-filter(1) with cow-on-read: what is read is kept in its overlay."""

    name = 'nbdkit cow'
    phases = COLD, WARM
    filters = '--filter=cow',
    options = 'cow-on-read=true',
    capabilities = {
        **_ALIVE, 'whole image before the boot': False,
        'shared by the servers of a host': 'one process an image',
        'survives a restart of the host': False, 'bounded by a quota': False,
        'live migration': 'if the destination has one at the same socket'}


class NbdkitCache(_Nbdkit):
    """nbdkit-cache-filter(1) with cache-on-read; cache=unsafe, as nobody writes."""

    name = 'nbdkit cache'
    phases = COLD, WARM
    filters = '--filter=cache',
    options = 'cache=unsafe', 'cache-on-read=true'
    capabilities = {**NbdkitCow.capabilities, 'bounded by a quota': 'cache-max-size, an image'}


class CopyOnRead(Peer):
    """QEMU's copy-on-read above the server's own overlay: libvirt's ``copy_on_read='on'``.

    What it keeps is in that overlay, so another server of the image finds nothing.
    """

    name = 'QEMU copy-on-read'
    phases = COLD, ANOTHER
    capabilities = {
        **_ALIVE, 'whole image before the boot': False, 'shared by the servers of a host': False,
        'survives a restart of the host': 'in each server\'s disk', 'bounded by a quota': False,
        'live migration': 'what was read is copied along'}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Make the overlay, and put the filter on top."""
        overlay = host.directory / _OVERLAY
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, image.base_uri, 'raw',
                               cluster_bytes=_STOCK_CLUSTER, open_backing=False)
        return [*chain_nodes(overlay, self.direct),
                {'driver': 'copy-on-read', 'node-name': 'kept', 'file': 'disk'}]


class ConvertRaw(Peer):
    """``qemu-img convert`` copies the base from the export before the boot; then all is local.

    It copies what is allocated, and converts nothing that it need not.
    """

    name = 'qemu-img convert'
    phases: tuple[str, ...] = COLD, WARM
    target = 'raw'
    capabilities = {
        'whole image before the boot': True, 'needs the network afterwards': False,
        'shared by the servers of a host': True, 'survives a restart of the host': True,
        'knows what a boot reads': 'copies all', 'bounded by a quota': False,
        'live migration': 'if the destination has the base'}

    def disk(self, host: HostChild, image: Image, phase: str) -> Nodes:
        """Copy the base where it is not there yet, and make the overlay."""
        base, overlay = host.directory / 'base', host.directory / _OVERLAY
        if not base.exists():
            part = host.directory / 'base.part'
            subprocess.run(
                ['qemu-img', 'convert', '-t', 'none' if self.direct else 'writeback', '-f', 'raw',
                 '-O', self.target, image.base_uri, str(part)], check=True)
            part.rename(base)
        qemuimg.create_overlay(str(overlay), image.virtual_bytes, str(base), self.target,
                               cluster_bytes=_STOCK_CLUSTER)
        return chain_nodes(overlay, self.direct)


class ConvertQcow2(ConvertRaw):
    """The same into a qcow2."""

    name = 'qemu-img convert to qcow2'
    phases = COLD, WARM
    target = 'qcow2'


def dm_clone() -> str:
    """Try the kernel's device mapper for its clone target; why that cannot be measured here.

    The kernel documents dm-clone (admin-guide/device-mapper/dm-clone): a local device that is
    filled from a remote one in the background while it is in use.
    """
    try:
        asked = subprocess.run(['dmsetup', 'targets'], text=True, capture_output=True, check=False)
    except FileNotFoundError:
        return 'there is no dmsetup'
    if asked.returncode:
        return f'dmsetup targets: {(asked.stderr.strip() or "it failed").splitlines()[0]}'
    if not any(line.split()[0] == 'clone' for line in asked.stdout.splitlines() if line.split()):
        return 'the kernel\'s device mapper has no target named clone'
    if not Path('/sys/class/block/nbd0').exists():
        return 'the kernel has dm-clone, but no network block device to clone from'
    return 'the kernel has dm-clone; how to boot from it is not in this benchmark'
