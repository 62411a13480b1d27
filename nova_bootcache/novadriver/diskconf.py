"""What Nova's configuration makes of servers' root disks on a host: whether they can be overlays.

Pure; ``conf`` is Nova's configuration.
"""

from typing import Any

from nova_bootcache.novadriver import signatures


def opens_directly(conf: Any) -> bool:
    """Tell whether servers' disks are opened with O_DIRECT: Nova's default, where it works."""
    modes = dict(mode.partition('=')[::2] for mode in conf.libvirt.disk_cachemodes)
    return modes.get('file', 'none') in ('none', 'directsync', 'default')


def has_overlays(conf: Any) -> bool:
    """Tell whether servers' root disks can be overlays."""
    return conf.libvirt.images_type in ('qcow2', 'default') and bool(conf.use_cow_images)


def serves(conf: Any) -> bool:
    """Tell whether new servers can boot from cache images."""
    return has_overlays(conf) and conf.preallocate_images == 'none'


def warnings(conf: Any) -> list[str]:
    """Return what an operator is to know of why servers go the stock way, with the cure."""
    found = []
    if not has_overlays(conf):
        found.append(f'[libvirt]images_type={conf.libvirt.images_type} is served the stock way;'
                     ' use qcow2')
    if signatures.are_checked(conf):
        found.append('Nova checks the signatures of images on this host, see'
                     ' [glance]verify_glance_signatures: servers go the stock way but those of'
                     ' images that the storage service has verified; set'
                     ' [bootcache]verify_signatures there')
    return found
