"""``bootcache image clean``: images without what the storage service has written to them."""

import argparse
from collections.abc import Iterator
from typing import Any

from glanceclient import exc as glance_exceptions
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import exception, rpcapi
from bootcache.quoting import one_line
from glance_bootcache.cli.arguments import image_id
from glance_bootcache.cli.client import Away
from glance_bootcache.cli.listing import Listing
from glance_bootcache.cli.waiting import names
from glance_bootcache.glance.images import Images, Marked

REMOVED, WOULD_BE, NOTHING, MISSING, FAILED = ('removed', 'would be removed', 'has none',
                                               'not in Glance', 'failed')
_ERRORS = (ks_exceptions.ClientException, glance_exceptions.ClientException)


class Clean(Listing):
    """Remove the properties that the storage service has set from Glance's images.

    These are bootcache_state and bootcache_reason. What people have set, as bootcache_mode, stays.
    For taking bootcache out: the storage service has to be stopped, as it would set them again.
    Asks Glance itself, with the credentials in the section [service_auth].
    """

    nothing = 'no image in Glance has such a property'

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._failed: list[str] = []
        self._absent: set[str] = set()

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group(required=True)
        # With a default, as argparse takes a positional for one that is required else.
        which.add_argument('images', type=image_id, nargs='*', metavar='image', default=[],
                           help='ids of images')
        which.add_argument('--all', action='store_true',
                           help='all images that have such a property')
        parser.add_argument('--dry-run', action='store_true',
                            help='only list them, with what would be removed')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Remove them, one image after the other; a failure stops no other."""
        conf = self.app.conf
        if not parsed_args.dry_run:
            self._refuse_if_served()
        images = Images(conf)
        progress = self.app.progress()
        rows = []
        try:
            found = list(images.marked()) if parsed_args.all \
                else list(self._named(images, parsed_args.images))
            for done, marked in enumerate(found):
                progress.bar('cleaning', done, len(found), 'images')
                rows.append((marked.image_id, one_line(marked.name), ', '.join(marked.names),
                             self._clean(images, marked, parsed_args.dry_run)))
            progress.bar('cleaning', len(found), len(found), 'images')
        except _ERRORS as error:
            raise exception.BootcacheError(
                f'Glance cannot be asked: {one_line(error)}; see [service_auth]') from error
        finally:
            progress.end()
        return ('image_id', 'name', 'properties', 'outcome'), rows

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Any, data: Any) -> int:
        """Give the table out, then fail if an image has its properties still."""
        code = super().produce_output(parsed_args, column_names, data)
        if self._failed:
            raise exception.BootcacheError(f'not cleaned: {names(self._failed)}')
        return code

    def _named(self, images: Images, wanted: list[str]) -> Iterator[Marked]:
        for image in dict.fromkeys(wanted):
            marked = images.look(image)
            if marked is None:
                self._absent.add(image)
                self._failed.append(f'{image} (Glance does not have it)')
            yield marked or Marked(image, '', ())

    def _refuse_if_served(self) -> None:
        try:
            self.app.storage_api().get_image(rpcapi.NO_IMAGE)
        except Away:
            return
        raise exception.BootcacheError(
            'the storage service runs, and would set the properties again; stop it first'
            ' ("systemctl disable --now glance-bootcache" on the storage node), or use --dry-run')

    def _clean(self, images: Images, marked: Marked, dry_run: bool) -> str:
        if marked.image_id in self._absent:
            return MISSING
        if not marked.names:
            return NOTHING
        if dry_run:
            return WOULD_BE
        try:
            images.unmark(marked)
        except glance_exceptions.HTTPNotFound:
            return MISSING
        except _ERRORS as error:
            self._failed.append(f'{marked.image_id} ({one_line(error)})')
            return FAILED
        return REMOVED
