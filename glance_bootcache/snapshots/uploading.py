"""A snapshot goes to Glance by its API, where no store registers it."""

import io
import os
from collections.abc import Callable
from typing import BinaryIO, cast

from glanceclient import exc
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import exception
from glance_bootcache import away
from glance_bootcache.glance.images import Images


class _Watched(io.FileIO):
    """A file whose reader can be stopped."""

    def __init__(self, path: str, check: Callable[[], None]):
        super().__init__(path, 'rb')
        self._check = check

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        return super().read(-1 if size is None else size) or b''


def upload(glance: Images, image_id: str, path: str, check: Callable[[], None]) -> None:
    """Upload the file of a snapshot.

    :param path: of the file, see ``Stored``.
    :param check: called before each piece of some KiB; what it raises ends the upload.
    :raises OSError: if the file cannot be read.
    :raises RequestRefused: if Glance does not take it.
    """
    with _Watched(path, check) as stream:
        try:
            glance.upload(image_id, cast(BinaryIO, stream), os.stat(path).st_size)
        except (exc.BaseException, exc.ClientException, ks_exceptions.ClientException) as error:
            raise exception.RequestRefused(
                f'Glance does not take it: {away.told(error)}') from error
