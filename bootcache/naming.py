"""How images, files, nodes and exports are named, the same on every host.

The file name of a host's cache image is the sha1 of the image's id, as Nova names its bases:
stock Nova code takes the base name of an overlay's backing file for a name below ``_base``, so
with this one a server that moves to a stock host gets the right base there.
"""

import hashlib
import uuid

EXPORT_BASE = 'base'
EXPORT_CACHE = 'cache'
EXPORT_DIFFERENCE = 'difference'
EXPORT_RECORDING = 'recording'
EXPORT_STORED = 'stored'
# What storage nodes serve of images; what they serve of snapshots is named otherwise.
OF_IMAGES = EXPORT_BASE, EXPORT_CACHE, EXPORT_DIFFERENCE, EXPORT_STORED
_ID_CHARACTERS = 36


def canonical_image_id(image_id: str) -> str:
    """Return the image id in its canonical form.

    :raises ValueError: if it is not a UUID; nothing else may become part of a path.
    """
    return str(uuid.UUID(image_id))


def cache_file_name(image_id: str) -> str:
    """Return the name of the image's cache image on a compute host (40 hexadecimal digits)."""
    return hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()


def node_name(kind: str, image_id: str) -> str:
    """Return a block node name: QEMU allows 31 characters and wants a letter first.

    :param kind: one or two letters that tell the image's nodes apart.
    """
    return f'{kind}-{cache_file_name(image_id)[:28 - len(kind)]}'


def export_name(kind: str, image_id: str) -> str:
    """Return the NBD export name of an image's base, cache image, recording, or stored
    file."""
    return f'{kind}-{image_id}'


def image_of(export: str) -> str:
    """Return what an export's name has in the place of the image's id; it need be none."""
    return export.partition('-')[2][:_ID_CHARACTERS]


def content_export_name(image_id: str, image_hash: str) -> str:
    """Return the name under which a storage node exports a base: another content, another name.

    A gateway that connects again, or a host whose disks stand on the older content, so never reads
    another one. The name in cache images' headers, which the gateway exports, names the image only.

    :param image_hash: ``algorithm:hexadecimal`` of the image file.
    """
    return f'{export_name(EXPORT_BASE, image_id)}-{image_hash.rpartition(":")[2][:16]}'


def nbd_unix_uri(socket_path: str, export: str) -> str:
    """Return the URI of an export behind a unix socket, as QEMU's headers and libvirt take it."""
    return f'nbd+unix:///{export}?socket={socket_path}'


def tcp_address(host: str, port: int) -> str:
    """Return host and port as URIs and messages have them: an IPv6 address in brackets."""
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
