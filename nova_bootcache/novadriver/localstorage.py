"""Whether a host's directories are its own: on storage that hosts share, nothing is served.

Hosts would evict each other's cache images, and one would move what another has just marked. The
chain of a server on shared storage also moves between hosts by its name alone.
"""

import contextlib
from collections.abc import Iterable, Mapping

from bootcache import tier

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
