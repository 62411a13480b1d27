"""Glance's images in a small real Ceph, with the pools, keys and options of the page about it."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tools.ceph.cluster import Ceph, CephError
from tools.cloud.bootcache import STORAGE_SERVICE, BootcacheCloud
from tools.cloud.layout import GLANCE, NOVA, Host

IMAGES, CLONES, SNAPSHOTS = 'images', 'bootcache', 'snapshots'
STORAGE_NAMESPACE = f'{CLONES}/storage'
READ_ONLY = f'profile rbd-read-only pool={IMAGES}'
# Of Glance, and of the storage service, which puts snapshots there.
_WRITES_SNAPSHOTS = f'profile rbd pool={SNAPSHOTS}'
LAYER = '80-ceph'


class RbdStore:
    """The Ceph of a cloud.

    :ivar ceph: it.

    :param directory: of all that it has.
    """

    def __init__(self, directory: Path):
        self.ceph = Ceph(directory)

    def up(self, hosts: Iterable[Host] = ()) -> None:
        """Bring it up, with pools, namespaces and keys.

        :param hosts: those that read bases there themselves.
        :raises CephError: if something of that fails.
        """
        self.ceph.up()
        for pool in (IMAGES, CLONES, SNAPSHOTS):
            self.ceph.make_pool(pool)
        self.ceph.make_user('glance', f'profile rbd pool={IMAGES}, {_WRITES_SNAPSHOTS}')
        self._make_reader('bootcache', 'storage', f', {_WRITES_SNAPSHOTS}')
        self._give('glance', GLANCE)
        self._give('bootcache', GLANCE)
        for host in hosts:
            self._make_reader(f'bootcache.{host.hostname}', host.hostname)
            self._give(f'bootcache.{host.hostname}', NOVA)
        # Clients' own sockets are beside the daemons'.
        self.ceph.directory.chmod(0o711)
        for name in ('run', 'log', 'crash'):
            (self.ceph.directory / name).chmod(0o1777)

    def _give(self, user: str, owner: str) -> None:
        """Have a user of this machine, and nobody else, read the keyring of one of Ceph's."""
        keyring = self.ceph.directory / f'ceph.client.{user}.keyring'
        shutil.chown(keyring, owner)
        keyring.chmod(0o400)

    def _make_reader(self, user: str, namespace: str, more: str = '') -> None:
        if namespace not in self._namespaces():
            self.ceph.run('rbd', 'namespace', 'create', f'{CLONES}/{namespace}')
        self.ceph.make_user(
            user, f'{READ_ONLY}, profile rbd pool={CLONES} namespace={namespace}{more}')

    def _namespaces(self) -> list[str]:
        found = json.loads(self.ceph.run('rbd', 'namespace', 'ls', '--format', 'json', CLONES))
        return [entry['name'] for entry in found]

    def configure(self, cloud: BootcacheCloud, hosts: Iterable[Host] = (),
                  **options: object) -> None:
        """Have a cloud's Glance and storage service keep images there, from their next start on.

        :param hosts: those that read bases there themselves.
        :param options: more of the storage service's.
        """
        places = {'rbd_store_pool': IMAGES, 'rbd_store_ceph_conf': self.ceph.conf}
        stored = {**places, 'rbd_store_user': 'glance', 'rbd_thin_provisioning': True}
        cloud.layer('glance', LAYER, {
            'DEFAULT': {'enabled_backends': 'file:file,ceph:rbd,snapshots:rbd'},
            'glance_store': {'default_backend': 'ceph'},
            'ceph': stored, 'snapshots': {**stored, 'rbd_store_pool': SNAPSHOTS}})
        cloud.layer(STORAGE_SERVICE, LAYER, {'bootcache': {**places, **options}})
        for host in hosts:
            cloud.layer(host.compute, LAYER, {'bootcache': {
                'base_access': 'rbd', 'base_rbd_ceph_conf': self.ceph.conf}})

    def osd_ports(self) -> list[int]:
        """Return the TCP ports from which OSDs send to clients."""
        osds = json.loads(self.ceph.run('ceph', 'osd', 'dump', '--format', 'json'))['osds']
        return sorted({int(address['addr'].rpartition(':')[2]) for osd in osds
                       for address in osd['public_addrs']['addrvec']})

    def read_by_host(self, host: Host) -> tuple[int, int]:
        """Return how many bytes of bases a host has read here itself, and by how many reads.

        librbd counts them, in the daemon that has the host's clones open; one that is started anew
        counts from 0.

        :raises CephError: if that does not answer.
        """
        count = reads = 0
        for socket in self.ceph.directory.glob(f'run/*-client.bootcache.{host.hostname}.*.asok'):
            try:
                counters = json.loads(self.ceph.run('ceph', '--admin-daemon', str(socket), 'perf',
                                                    'dump'))
            except CephError:
                if socket.exists() and _is_alive(socket):
                    raise
                continue
            for name, values in counters.items():
                if name.startswith('librbd-') and f'-{CLONES}-base-' in name:
                    count += values['rd_bytes']
                    reads += values['rd']
        return count, reads

    def _pool_of(self, image_id: str) -> str:
        """Return the pool that has an image.

        :raises CephError: if none has.
        """
        for pool in (IMAGES, SNAPSHOTS):
            if image_id in json.loads(self.ceph.run('rbd', 'ls', '--format', 'json', pool)):
                return pool
        raise CephError(f'image {image_id} is in neither of the pools {IMAGES} and {SNAPSHOTS}')

    def stored(self, image_id: str) -> int:
        """Return the bytes of an image's objects: of a clone's its own, and none of its base's.

        :raises CephError: if there is no such image.
        """
        found = json.loads(self.ceph.run('rbd', 'du', '--format', 'json',
                                         f'{self._pool_of(image_id)}/{image_id}@snap'))
        return int(found['images'][0]['used_size'])

    def node(self, image_id: str) -> dict[str, object]:
        """Return the block node by which QEMU reads an image's file as Glance has it.

        :raises CephError: if there is no such image.
        """
        return {'driver': 'rbd', 'pool': self._pool_of(image_id), 'image': image_id,
                'snapshot': 'snap', 'conf': str(self.ceph.conf), 'user': 'glance'}

    @staticmethod
    def unconfigure(cloud: BootcacheCloud) -> None:
        """Undo ``configure``, from the services' next start on."""
        for service in ('glance', STORAGE_SERVICE, *(host.compute for host in cloud.hosts)):
            if cloud.layout.layers(service).is_dir():
                cloud.layer(service, LAYER, None)

    def down(self) -> None:
        """End it, and remove all that it has."""
        self.ceph.down(wipe=True)


def _is_alive(socket: Path) -> bool:
    """Whether the process is there that an admin socket is named after."""
    return Path('/proc', socket.name.split('.')[-2]).is_dir()
