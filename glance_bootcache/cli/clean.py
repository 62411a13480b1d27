"""``bootcache image clean``: images without what the storage service has written to them."""

import argparse
import time
from typing import Any

from glanceclient import exc as glance_exceptions
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import exception
from bootcache.quoting import one_line
from bootcache.rpc import messages
from glance_bootcache.cli.arguments import image_id
from glance_bootcache.cli.client import Away
from glance_bootcache.cli.listing import Listing
from glance_bootcache.glance import images as glance_images
from glance_bootcache.glance.images import Images
from glance_bootcache.imagefacts import ImageFacts

_ERRORS = (ks_exceptions.ClientException, glance_exceptions.ClientException)


class Clean(Listing):
    """Remove the properties that the storage service has set from Glance's images.

    These are bootcache_state and bootcache_reason. What people have set, as bootcache_mode, stays.
    For taking bootcache out: the storage service has to be stopped, as it would set them again.
    Asks Glance itself, with the credentials in the section [service_auth].
    """

    nothing = 'no image in Glance has such a property'

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
        rows, step = [], 'looking at' if parsed_args.dry_run else 'cleaning'
        try:
            found = {image.image_id: image for image in images.all()
                     if glance_images.published(image)} if parsed_args.all \
                else {image_id: images.get(image_id) for image_id in parsed_args.images}
            for done, (image_id, image) in enumerate(found.items()):
                progress.bar(step, done, len(found), 'images')
                rows.append((image_id, one_line(image.name if image else ''),
                             ', '.join(glance_images.published(image) if image else ()),
                             self._clean(images, image_id, image, parsed_args.dry_run)))
            progress.bar(step, len(found), len(found), 'images')
        except _ERRORS as error:
            raise exception.BootcacheError(
                f'Glance cannot be asked: {one_line(error)}; see [service_auth]') from error
        finally:
            progress.end()
        return ('image_id', 'name', 'properties', 'outcome'), rows

    def _refuse_if_served(self) -> None:
        try:
            self.app.storage_client().send(messages.GetImage(messages.NO_IMAGE))
        except Away:
            return
        raise exception.BootcacheError(
            'the storage service runs, and would set the properties again; stop it first'
            ' ("systemctl disable --now glance-bootcache" on the storage node), or use --dry-run')

    def _clean(self, images: Images, image_id: str, image: ImageFacts | None,
               dry_run: bool) -> str:
        if image is not None and not glance_images.published(image):
            return 'has none'
        if image is not None and dry_run:
            return 'would be removed'
        try:
            after = image and images.publish(image_id, {}, _may_write)
        except _ERRORS as error:
            outcome, why = 'failed', one_line(error)
        else:
            if after is None:
                outcome, why = 'not in Glance', 'Glance does not have it'
            elif glance_images.published(after):
                outcome, why = 'failed', 'Glance is at work on it; try again when it is done'
            else:
                return 'removed'
        self.complaints.append(f'not cleaned: {image_id} ({why})')
        return outcome


def _may_write(image: ImageFacts) -> bool:
    return not glance_images.is_at_work(image, time.time() - glance_images.changed_at(image))
