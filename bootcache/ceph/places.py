"""Where in Ceph a base is: Glance's snapshot, and the clone of it that is read. Pure.

A clone stands in a manifest as ``rbd:POOL/NAMESPACE/NAME``. Glance's own image is never opened by
QEMU: QEMU says to Ceph that it watches what it has open, so that Glance could not delete it, and
wants to write for that, so that its key could delete it.
"""

import dataclasses
import hashlib
import re
import secrets
import urllib.parse
from collections.abc import Mapping
from typing import Any

_SCHEME = 'rbd:'
# Glance's RBD store has the image's id as the image's name, and one snapshot.
SNAPSHOT = 'snap'
# Of what Glance shows of an image's locations, so many are looked at.
_MOST_LOCATIONS = 8
# What Ceph's commands take for a name, and for nothing else.
_NAME = re.compile(r'[A-Za-z0-9_.][A-Za-z0-9_.:-]{0,127}')
_CLONE = re.compile(r'base-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-[0-9a-f]{8}'
                    r'(?:\.[0-9a-f]{8})?')


@dataclasses.dataclass(frozen=True)
class RbdSnapshot:
    """A snapshot of an RBD image.

    :ivar pool: its pool.
    :ivar image: the image's name.
    :ivar name: the snapshot's.
    """

    pool: str
    image: str
    name: str

    def __str__(self) -> str:
        return f'{self.pool}/{self.image}@{self.name}'


@dataclasses.dataclass(frozen=True)
class RbdOrigin:
    """Where a clone comes from.

    :ivar fsid: the cluster's id.
    :ivar pool: of Glance's image.
    :ivar image: its name.
    :ivar snapshot: the snapshot's.
    :ivar id: RBD's own id of the image: another image, of the same name, has another one.
    :ivar snapshot_id: likewise of the snapshot.
    """

    fsid: str
    pool: str
    image: str
    snapshot: str
    id: str
    snapshot_id: str

    @classmethod
    def read(cls, said: object) -> 'RbdOrigin | None':
        """Read what a service tells; None if it is none, of which a base need not be read."""
        if not isinstance(said, Mapping):
            return None
        told: dict[str, Any] = {field.name: said.get(field.name)
                                for field in dataclasses.fields(cls)}
        if not all(isinstance(value, str) and _NAME.fullmatch(value) for value in told.values()):
            return None
        return cls(**told)

    @property
    def parent(self) -> RbdSnapshot:
        """The snapshot itself."""
        return RbdSnapshot(self.pool, self.image, self.snapshot)

    def clone(self, image_id: str, pool: str, namespace: str) -> 'RbdClone':
        """Return the one clone of it that a namespace has: who looks for it knows its name.

        :param image_id: the Glance image.
        """
        digest = hashlib.sha256('/'.join(dataclasses.astuple(self)).encode()).hexdigest()
        return RbdClone(pool, namespace, f'base-{image_id}-{digest[:8]}')


@dataclasses.dataclass(frozen=True)
class RbdClone:
    """A clone in a namespace of ours.

    :ivar pool: its pool.
    :ivar namespace: its RBD namespace.
    :ivar name: the clone's.
    """

    pool: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """What a manifest calls it."""
        return f'{_SCHEME}{self.pool}/{self.namespace}/{self.name}'

    def beside(self) -> 'RbdClone':
        """Return where one is made that becomes this one: a crash may leave half of it."""
        return dataclasses.replace(self, name=f'{self.name}.{secrets.token_hex(4)}')

    @property
    def image_id(self) -> str | None:
        """The Glance image whose base it is; None of what bootcache has not made."""
        match = _CLONE.fullmatch(self.name)
        return match[1] if match else None


def is_clone(path: str) -> bool:
    """Tell whether a base is a clone in Ceph, and no file."""
    return path.startswith(_SCHEME)


def clone_of(path: str) -> RbdClone:
    """Return the clone that a manifest names.

    :raises ValueError: if it is none.
    """
    pool, namespace, name = path.removeprefix(_SCHEME).split('/')
    return RbdClone(pool, namespace, name)


def snapshots(image_id: str, shown: Mapping[str, Any], *pools: str) -> list[RbdSnapshot]:
    """Return where in some pools an image's bytes may be, the likeliest first.

    That is what Glance shows of its locations, if it shows any, and the place that its RBD store
    gives to every image that it stores. Others' pools are left alone: Glance may read them with
    another key, for another reason.

    :param shown: the image's properties, of which Glance shows ``locations`` and ``direct_url``.
    :param pools: Glance's, and that of snapshots.
    """
    locations = shown.get('locations')
    urls = [entry.get('url') for entry in locations[:_MOST_LOCATIONS] if isinstance(entry, dict)] \
        if isinstance(locations, list) else []
    urls.append(shown.get('direct_url'))
    found = [_of_url(url) for url in urls if isinstance(url, str)]
    found += [RbdSnapshot(pool, image_id, SNAPSHOT) for pool in pools]
    return list(dict.fromkeys(place for place in found
                              if place is not None and place.pool in pools))


def _of_url(url: str) -> RbdSnapshot | None:
    """Read ``rbd://FSID/POOL/IMAGE/SNAPSHOT``; which cluster it is, the content will tell."""
    scheme, _colon, rest = url.partition('://')
    pieces = [urllib.parse.unquote(piece) for piece in rest.split('/')]
    # Ceph's commands would read a name with a slash or an at sign as one in another pool.
    if scheme != 'rbd' or len(pieces) != 4 or not all(pieces) or not _NAME.fullmatch(pieces[2]):
        return None
    return RbdSnapshot(*pieces[1:])


def protocol(clone: RbdClone, conf: str, user: str) -> dict[str, object]:
    """Return the block node by which QEMU reads a clone, without its name.

    :param conf: path of ceph.conf.
    :param user: without ``client.``.
    """
    return {'driver': 'rbd', 'pool': clone.pool, 'namespace': clone.namespace,
            'image': clone.name, 'conf': conf, 'user': user}
