"""Whether Glance lets a server's user download an image: its policy ``download_image``."""

from typing import Any

from glanceclient import exc
from nova.image import glance
from oslo_log import log as logging

from bootcache.util import threads

LOG = logging.getLogger(__name__)

# Nova's own patience with Glance has no end.
_PATIENCE_SECONDS = 30


def refusal(context: Any, image_id: str) -> str:
    """Return why Glance does not let a user download an image; empty if it does.

    Glance has no question for that: the download is begun, by Nova's own client as the user, and
    given up when the answer comes, which is before the data. Only what Glance refuses counts: one
    that does not answer, or not within half a minute, does not say that the user may not.

    :param context: Nova's, of the request that makes the server.
    """
    def ask() -> None:
        # Without the hash, for which the image's record would be asked for as well.
        glance.get_default_image_service()._client.call(
            context, 2, 'data', args=(image_id,), kwargs={'do_checksum': False})

    try:
        threads.daemon_thread(ask, 'bootcache-download').result(_PATIENCE_SECONDS)
    except (exc.HTTPForbidden, exc.HTTPNotFound) as error:
        return f'Glance does not let the server\'s user download image {image_id}: {error}'
    except Exception as error:
        LOG.warning('bootcache: Glance does not say whether the user may download image %s: %r',
                    image_id, error)
    return ''
