"""What Nova's configuration makes of servers' root disks on a host: whether they can be overlays.

Pure; ``conf`` is Nova's configuration.
"""

from typing import Any

from nova.virt.libvirt import imagebackend

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
