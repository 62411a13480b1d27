"""Where an image's base comes from: Glance's own file store, or a download."""

import hashlib
import os
import threading
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, savefile, steps
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.glance.images import Images
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


def obtain(image: ImageFacts, store: ImageStore, images: Images, store_dirs: list[str],
           cancelled: threading.Event, arrived: Callable[[int], None] = lambda count: None) -> str:
    """Get an image's stored bytes as a file, checked against Glance's hash.

    From a file store the file is hard-linked into the image's directory, so that servers can go on
    reading it after Glance has deleted the image; where it cannot be linked it is used in place.

    :param store_dirs: directories of Glance's file store that this service can read.
    :param cancelled: set if the image was deleted meanwhile.
    :param arrived: told of the bytes of each piece that is downloaded.
    :returns: the file's path.
    :raises ImageRefused: if the content does not match, or Glance has no hash for it.
    :raises Cancelled: if told so.
    :raises OSError: if the state directory cannot be written.
    """
    algorithm, _colon, value = image.image_hash.partition(':')
    if not value:
        raise exception.ImageRefused('Glance has no hash for the image (os_hash_value)')
    os.makedirs(store.directory(image.image_id), mode=0o750, exist_ok=True)
    target = store.path(image.image_id, store.new_name('base', '.img'))
    for directory in store_dirs:
        source = os.path.join(directory, image.image_id)
        if os.path.isfile(source) and os.access(source, os.R_OK):
            found = _link(source, target)
            if savefile.file_digest(found, algorithm) != value:
                raise exception.ImageRefused(f'{source} does not have Glance\'s {algorithm}')
            return found
    if store_dirs:
        LOG.info('image %s: not in %s; it is downloaded', image.image_id, ', '.join(store_dirs))
    _download(image, images, target, algorithm, value, cancelled, arrived)
    return target


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError as error:
        LOG.info('%s cannot be linked into the state directory (%s); it is used in place, and'
                 ' servers lose it when Glance deletes the image and the exporter restarts',
                 source, error)
        return source
    return target


def _download(image: ImageFacts, images: Images, target: str, algorithm: str, value: str,
              cancelled: threading.Event, arrived: Callable[[int], None]) -> None:
    partial = f'{target}.partial'
    digest = hashlib.new(algorithm)
    try:
        with open(partial, 'wb') as stream:
            for piece in images.download(image.image_id):
                if cancelled.is_set():
                    raise exception.Cancelled('the image was deleted while it was downloaded')
                digest.update(piece)
                stream.write(piece)
                arrived(len(piece))
        if digest.hexdigest() != value:
            raise exception.ImageRefused(f'the download does not have Glance\'s {algorithm}')
        steps.reached('register: copied')
        savefile.commit(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
