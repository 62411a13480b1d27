"""Where an image's base comes from: Glance's own file store, or a download."""

import hashlib
import os
from collections.abc import Callable, Iterable

from oslo_log import log as logging

from bootcache import exception, savefile, steps
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.filestore import placing
from glance_bootcache.glance.images import Images
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# After so many bytes of a download it is looked whether there is room for the rest.
_LOOK_BYTES = 64 << 20


def obtain(image: ImageFacts, store: ImageStore, images: Images, store_dirs: Iterable[str],
           check: Callable[[], None], arrived: Callable[[int], None] = lambda count: None
           ) -> tuple[str, tuple[int, int, int]]:
    """Get an image's stored bytes as a file, checked against Glance's hash.

    From a file store the file is hard-linked into the image's directory, so that servers can go on
    reading it after Glance has deleted the image; where it cannot be linked it is used in place. A
    file of other content is taken for one that Glance is still writing: an image that has several
    stores is active when the first one has it.

    :param store_dirs: directories of Glance's file store that this service can read.
    :param check: called between pieces; what it raises ends it.
    :param arrived: told of the bytes of each piece that is downloaded.
    :returns: the file's path, and its identity, as of bootcache/savefile.py, when it was hashed.
    :raises ImageRefused: if the content does not match, or Glance has no hash for it.
    :raises StorageNodeFull: if the state directory has no room for a download.
    :raises OSError: if the state directory cannot be written.
    """
    algorithm, _colon, value = image.image_hash.partition(':')
    if not value:
        raise exception.ImageRefused('Glance has no hash for the image (os_hash_value)')
    os.makedirs(store.directory(image.image_id), mode=0o750, exist_ok=True)
    target = store.path(image.image_id, store.new_name('base', '.img'))
    for directory in store_dirs:
        source = os.path.join(directory, image.image_id)
        if not os.path.isfile(source) or not os.access(source, os.R_OK):
            continue
        found, is_right = _link(source, target), False
        try:
            file = savefile.identity(os.stat(found))
            is_right = os.stat(found).st_size == image.stored_bytes \
                and savefile.file_digest(found, algorithm, check) == value
        finally:
            if not is_right and found == target:
                os.unlink(target)
        if is_right:
            return found, file
        LOG.info('image %s: %s does not have Glance\'s size and %s, as it is not all there yet, or'
                 ' damaged', image.image_id, source, algorithm)
    LOG.info('image %s is downloaded', image.image_id)
    _download(image, images, target, algorithm, value, check, arrived)
    return target, savefile.identity(os.stat(target))


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
              check: Callable[[], None], arrived: Callable[[int], None]) -> None:
    partial, digest = f'{target}.partial', hashlib.new(algorithm)
    done = looked = 0
    try:
        placing.check_free(os.path.dirname(target), image.stored_bytes)
        with open(partial, 'wb') as stream:
            for piece in images.download(image.image_id):
                check()
                done += len(piece)
                if done > image.stored_bytes:
                    raise exception.ImageRefused(
                        f'the download has more than the {image.stored_bytes} bytes that Glance'
                        f' tells, and so not its {algorithm}')
                digest.update(piece)
                if piece.lstrip(b'\0'):
                    stream.write(piece)
                else:
                    # A hole: hosts that copy the base are spared it.
                    stream.seek(len(piece), os.SEEK_CUR)
                arrived(len(piece))
                if done - looked >= _LOOK_BYTES:
                    # Others write there as well.
                    placing.check_free(os.path.dirname(target), image.stored_bytes - done)
                    looked = done
            stream.truncate()
        if digest.hexdigest() != value:
            raise exception.ImageRefused(f'the download does not have Glance\'s {algorithm}')
        steps.reached('register: copied')
        savefile.commit(partial, target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
