"""A store of Glance's that keeps images in files, and names them by the image's id only.

glance-api loads it (entry point ``glance_store.drivers``, name ``bootcache``). It is Glance's own
file store with other locations: ``bootcache://STORE/IMAGE-ID``. Glance refuses ``file://`` as a
location that somebody gives, since that is a path (LP 942118); here none can be given. So a file
that the storage service has put into the store, as a reflink, is registered without being copied.

Locations that the stock file store noted are read on, where they are files of this directory.
"""

import logging
import os
import re
import stat
from collections.abc import Callable
from typing import Any

from glance_store import exceptions
from glance_store._drivers import filesystem

from glance_bootcache.filestore.locations import SCHEME, location_of

LOG = logging.getLogger(__name__)

_IMAGE_ID = r'[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}'
_LOCATION = re.compile(rf'{SCHEME}://([^/?#]+)/({_IMAGE_ID})')
_STOCK_LOCATION = re.compile(rf'(?:file|filesystem)://(/.*)/({_IMAGE_ID})', re.DOTALL)


class ImageFileLocation(filesystem.StoreLocation):  # type: ignore[misc]
    """A location, read.

    :ivar image_id: that it names.
    :ivar directory: of a location that the stock file store noted; None of one of ours.
    """

    image_id: str
    directory: str | None = None

    def process_specs(self) -> None:
        """Take what a location is made of."""
        self.scheme = SCHEME
        self.image_id = self.specs['image_id']

    def get_uri(self) -> str:
        """Return the location."""
        if self.directory is None:
            return location_of(self.backend_group, self.image_id)
        return f'{self.scheme}://{self.directory}/{self.image_id}'

    def parse_uri(self, uri: str) -> None:
        """Read a location.

        :raises BadStoreUri: if it is anything but an image's id in this store.
        """
        own, stock = _LOCATION.fullmatch(uri), _STOCK_LOCATION.fullmatch(uri)
        if own and own[1] == self.backend_group:
            self.scheme, self.directory, self.image_id = SCHEME, None, own[2]
        elif stock:
            self.scheme = uri.partition(':')[0]
            self.directory, self.image_id = stock[1], stock[2]
        else:
            raise exceptions.BadStoreUri(
                message=f'a location of this store is {SCHEME}://{self.backend_group}/IMAGE-ID')


class ImageFiles(filesystem.Store):  # type: ignore[misc]
    """The store: one directory, one file for each image, whose name is the image's id."""

    # None while the configuration is not right.
    datadir: str | None = None

    def get_schemes(self) -> tuple[str, ...]:
        """Return the schemes of locations that are read: ours, and those of the stock file
        store."""
        return (SCHEME, 'file', 'filesystem')

    def get_store_location_class(self) -> type[ImageFileLocation]:
        """Return the class that reads locations."""
        return ImageFileLocation

    def configure_add(self) -> None:
        """Read the configuration.

        :raises BadStoreConfiguration: if the store has no name, or several directories.
        """
        reason = ''
        if not self.backend_group:
            reason = ('it has to be named in enabled_backends, as in enabled_backends ='
                      f' file:{SCHEME}')
        elif self.store_conf.filesystem_store_datadirs:
            reason = ('it has one directory: name it in filesystem_store_datadir, and set no'
                      f' filesystem_store_datadirs in [{self.backend_group}]')
        if reason:
            raise exceptions.BadStoreConfiguration(store_name=SCHEME, reason=reason)
        super().configure_add()

    def _set_url_prefix(self) -> None:
        # By which Glance finds the store of a location. With the slash: else a store whose name
        # begins with this one's is taken for it.
        self._url_prefix = f'{SCHEME}://{self.backend_group}/'

    def get(self, location: Any, offset: int = 0, chunk_size: int | None = None,
            context: Any = None) -> tuple[Any, int]:
        """Return an image's bytes, and how many there are.

        :raises NotFound: if there is no such file, or it is none.
        """
        try:
            path = self._path(location)
        except exceptions.BadStoreUri as error:
            # Which would be an error of Glance's own.
            LOG.warning('an image cannot be read: %s', error)
            raise exceptions.NotFound(image=location.store_location.get_uri()) from error
        try:
            found: tuple[Any, int] = self._timed(lambda: self._opened(path, offset, chunk_size))
        except OSError as error:
            raise exceptions.NotFound(image=path) from error
        return found

    def _opened(self, path: str, offset: int, length: int | None) -> tuple[Any, int]:
        """Open what is a file, and not what a symbolic link or a device of that name leads to."""
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise exceptions.NotFound(image=path)
            # The one that was looked at, whatever has that name by now.
            data = filesystem.ChunkedFile(f'/proc/self/fd/{fd}', offset=offset,
                                          chunk_size=self.READ_CHUNKSIZE, partial_length=length)
        finally:
            os.close(fd)
        return data, length or status.st_size

    def get_size(self, location: Any, context: Any = None) -> int:
        """Return the bytes of an image: Glance asks when a location is given.

        A file that has a second name is refused: whoever holds that one could write to it.

        :raises NotFound: if there is no such file.
        :raises BadStoreUri: if it is no plain file, or has a second name.
        """
        path = self._path(location)
        try:
            status = self._timed(lambda: os.lstat(path))
        except OSError as error:
            raise exceptions.NotFound(image=path) from error
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise exceptions.BadStoreUri(message=f'{path} is no plain file with one name')
        return int(status.st_size)

    def delete(self, location: Any, context: Any = None) -> None:
        """Remove an image's file.

        :raises NotFound: if there is none.
        :raises Forbidden: if it cannot be removed.
        """
        # Of which the stock store's method takes the path only.
        location.store_location.path = self._path(location)
        super().delete(location, context=context)

    def add(self, image_id: Any, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Store an image as the stock store does; its location has no path.

        :raises BadStoreUri: if the id is none.
        """
        if not re.fullmatch(_IMAGE_ID, str(image_id)):
            raise exceptions.BadStoreUri(message=f'{image_id} is no id of an image')
        _url, *others = super().add(image_id, *arguments, **named)
        return location_of(self.backend_group, image_id), *others

    def _path(self, location: Any) -> str:
        """Return the path of what a location names.

        :raises BadStoreUri: if it is a path that leads elsewhere.
        """
        found = location.store_location
        if self.datadir is None:
            raise exceptions.BadStoreUri(
                message=f'store {self.backend_group} is not configured as it has to be')
        if found.directory is not None \
                and os.path.realpath(found.directory) != os.path.realpath(self.datadir):
            raise exceptions.BadStoreUri(
                message=f'{found.get_uri()} is not in {self.datadir}; give that directory a store'
                        ' of type file')
        return os.path.join(self.datadir, found.image_id)

    def _timed(self, function: Callable[[], Any]) -> Any:
        """Call within ``filesystem_store_timeout``, which earlier releases do not have."""
        executor = getattr(self, 'timeout_executor', None)
        return executor.execute(function) if executor else function()
