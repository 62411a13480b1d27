"""What Nova's configuration makes of servers' root disks on a host: whether they can be overlays.

Pure; ``conf`` is Nova's configuration.

On storage that hosts share nothing is served: hosts would evict each other's cache images, and one
would move what another has just marked. The chain of a server on shared storage also moves between
hosts by its name alone.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from nova.virt.libvirt import imagebackend

from bootcache import tier
from nova_bootcache.novadriver import signatures


def opens_directly(conf: Any) -> bool:
    """Tell whether servers' disks are opened with O_DIRECT: Nova's default, where it works."""
    modes = dict(mode.partition('=')[::2] for mode in conf.libvirt.disk_cachemodes)
    return modes.get('file', 'none') in ('none', 'directsync', 'default')


def has_overlays(conf: Any) -> bool:
    """Tell whether servers' root disks can be overlays: as Nova chooses what makes them.

    Nova looks at use_cow_images only where images_type is default.
    """
    table = imagebackend.Backend(conf.use_cow_images)
    return table.backend(conf.libvirt.images_type) is imagebackend.Qcow2


def serves(conf: Any) -> bool:
    """Tell whether new servers can boot from cache images."""
    return has_overlays(conf) and conf.preallocate_images == 'none'


def warnings(conf: Any) -> list[str]:
    """Return what an operator is to know of why servers go the stock way, with the cure."""
    found = []
    if not has_overlays(conf):
        why = f'[libvirt]images_type={conf.libvirt.images_type}'
        if conf.libvirt.images_type == 'default':
            why = '[DEFAULT]use_cow_images=false, with [libvirt]images_type=default,'
        found.append(f'{why} makes no overlays: all servers of this host go the stock way; set'
                     ' [libvirt]images_type = qcow2')
    elif not serves(conf):
        found.append(f'[DEFAULT]preallocate_images={conf.preallocate_images} has each disk filled:'
                     ' all servers of this host go the stock way; set it to none')
    if signatures.are_checked(conf):
        found.append('Nova checks the signatures of images on this host, see'
                     ' [glance]verify_glance_signatures: servers go the stock way but those of'
                     ' images that the storage service has verified; set'
                     ' [bootcache]verify_signatures there')
    return found


# Of the kernel's names. Not 9p and virtiofs, by which a virtual machine has a directory of its own.
_SHARED = frozenset({
    'afs', 'beegfs', 'ceph', 'cifs', 'gfs2', 'gpfs', 'lustre', 'nfs', 'nfs4', 'ocfs2', 'orangefs',
    'panfs', 'pvfs2', 'smb3', 'smbfs', 'wekafs'})
_SHARED_FUSE = frozenset({
    'beegfs', 'ceph', 'ceph-fuse', 'glusterfs', 'juicefs', 'lizardfs', 'mfs', 'moosefs', 'quobyte',
    's3fs', 'saunafs', 'seaweedfs', 'sshfs', 'vzstorage', 'weka'})


def is_shared(file_system: str) -> bool:
    """Tell whether hosts share a file system, by its type as the kernel names it. Pure."""
    kind, _dot, fuse = file_system.partition('.')
    return fuse in _SHARED_FUSE if kind == 'fuse' else kind in _SHARED


def types(directories: Mapping[str, str]) -> dict[str, str]:
    """Return the types of file systems, by the names of directories; one that is not there is left
    out.

    :param directories: by the names of the options that name them.
    """
    found = {}
    for option, path in directories.items():
        with contextlib.suppress(OSError):
            found[f'{option}={path}'] = tier.file_system(path)
    return found


def refusal(kinds: Mapping[str, str], users: Iterable[str], host: str) -> str:
    """Return why a host is not to serve cache images, and the cure; empty if it may. Pure.

    :param kinds: types of file systems, by options and their values.
    :param users: hosts that, by Nova's own record, use this one's directory of instances.
    :param host: this one.
    """
    for option, kind in kinds.items():
        if is_shared(kind):
            return (f'{option} lies on {kind}, a file system that hosts share; name a directory on'
                    ' a disk of this host, or use Nova\'s own driver,'
                    ' compute_driver = libvirt.LibvirtDriver')
    others = sorted(set(users) - {host})
    if others:
        return (f'[DEFAULT]instances_path is used by {", ".join(others)} as well, as Nova notes in'
                ' its file compute_nodes there; name a directory on a disk of this host, or use'
                ' Nova\'s own driver, compute_driver = libvirt.LibvirtDriver')
    return ''


_UNITS = {'DISK_GB': 1 << 30, 'MEMORY_MB': 1 << 20}


def with_reserve(inventory: Mapping[str, Mapping[str, Any]],
                 quotas: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return an inventory in which the tiers' quotas are reserved, beside what Nova reserves.

    All of a quota, whatever is in the tier now: the rest may come with the next boot. No more than
    there is can be reserved. Pure.

    :param inventory: by resource class, as Nova has it.
    :param quotas: bytes by resource class, DISK_GB and MEMORY_MB.
    """
    changed = {name: dict(fields) for name, fields in inventory.items()}
    for name, quota in quotas.items():
        if name in changed:
            reserved = changed[name].get('reserved', 0) + -(-quota // _UNITS[name])
            changed[name]['reserved'] = min(reserved, changed[name]['total'])
    return changed


def reserve(provider_tree: Any, nodename: str, quotas: Mapping[str, int]) -> None:
    """Reserve the tiers' quotas in what Nova is about to report.

    :param provider_tree: Nova's.
    :param nodename: of this host in it.
    :param quotas: as for ``with_reserve``.
    """
    inventory = provider_tree.data(nodename).inventory
    reserved = with_reserve(inventory, quotas)
    if reserved != inventory:
        provider_tree.update_inventory(nodename, reserved)


def statistics(virtapi: Any, node: str) -> dict[str, Any]:
    """Return the statistics that Nova's resource tracker has of a node now; private in Nova.

    :param virtapi: what Nova's compute manager gives to its driver; another's has none.
    """
    try:
        return dict(virtapi._compute.rt.stats.get(node) or {})
    except AttributeError:
        return {}
