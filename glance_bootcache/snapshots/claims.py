"""Whether a snapshot is what a host says it is, as Glance and Nova know it.

Hosts can say anything on the message bus. Nova makes the image before it asks its host, with the
server's id; and Nova knows on which host that server is, and of which image it was made.
"""

import enum
from collections.abc import Callable

from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg

from bootcache import naming
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images
from glance_bootcache.glance.images import Images
from glance_bootcache.snapshots.records import Record

_API_VERSION = '2.79'
_HOST = 'OS-EXT-SRV-ATTR:host'
_THERE = ('active', 'deactivated')
_GONE = ('deleted', 'killed', 'pending_delete')


class ImageStanding(enum.Enum):
    """How an image of Glance's stands to a snapshot that was made for it."""

    # It will never need it.
    ABSENT = 'absent'
    # It has no data yet, and is not being given any.
    WAITS = 'waits'
    TAKING = 'taking'
    HAS = 'has'


class Claims:
    """Asks both, with the storage service's credentials.

    :param conf: configuration of the storage service.
    :param is_listed_without: tells whether Glance lists other images, and not one.
    """

    def __init__(self, conf: cfg.ConfigOpts, glance: Images,
                 is_listed_without: Callable[[str], bool]):
        self._glance = glance
        self._is_listed_without = is_listed_without
        self._nova = nova_client.Client(_API_VERSION, session=images.session(conf),
                                        region_name=conf[AUTH_GROUP].region_name)

    def standing(self, record: Record) -> ImageStanding:
        """Return how an image stands to the snapshot that was made for it.

        Stock Nova's way makes the same image, often of another format or in another store.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        image = self._glance.get(record.snapshot_id)
        if image is None:
            # A snapshot is removed for it, and one answer of 404 may be anybody's.
            return ImageStanding.ABSENT if self._is_listed_without(record.snapshot_id) \
                else ImageStanding.TAKING
        if image.status in _GONE:
            return ImageStanding.ABSENT
        if image.status == 'queued':
            return ImageStanding.WAITS
        if image.status in _THERE:
            stores = str(image.properties.get('stores') or '').split(',')
            is_ours = record.disk_format in ('', image.disk_format) \
                and (not record.file or record.glance_store in stores)
            return ImageStanding.HAS if is_ours else ImageStanding.ABSENT
        return ImageStanding.TAKING

    def refusal(self, image_id: str, snapshot_id: str, host: str) -> str:
        """Return why a host may not make a snapshot; empty if it may.

        :param image_id: of which its server was made.
        :param snapshot_id: the image that the snapshot becomes.
        :raises Exception: keystoneauth's or a client's, if one cannot be asked.
        """
        image = self._glance.get(snapshot_id)
        if image is None or image.status != 'queued':
            return 'Glance has no such image that waits for its data'
        try:
            server = self._nova.servers.get(naming.canonical_image_id(
                str(image.properties.get('instance_uuid'))))
        except (ValueError, nova_exceptions.NotFound):
            return 'the image is of no server that Nova knows'
        if getattr(server, _HOST, None) != host:
            return f'Nova does not have its server on host {host}'
        made_of = server.image if isinstance(server.image, dict) else {}
        if made_of.get('id') != image_id:
            return f'its server was not made of image {image_id}'
        return ''
