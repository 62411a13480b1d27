"""``bootcache pin`` and ``unpin``: cache images that stay, whatever else is used more."""

import argparse
from typing import Any

from glance_bootcache.cli.arguments import image_id
from glance_bootcache.cli.image import not_known
from glance_bootcache.cli.listing import Listing


class _Pinning(Listing):
    pinned: bool

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('images', type=image_id, nargs='+', metavar='image',
                            help='ids of images')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Tell the service; unknown images are named and make the command fail."""
        api = self.app.storage_api()
        unknown = [image for image in parsed_args.images
                   if not api.pin_image(image, self.pinned)]
        if unknown:
            raise not_known(unknown)
        return ('image_id', 'pinned'), [(image, self.pinned) for image in parsed_args.images]


class Pin(_Pinning):
    """Keep images' cache images in every tier that they are in.

    A compute host hears of it with the next server of the image.
    """

    pinned = True


class Unpin(_Pinning):
    """Let images' cache images be evicted again when others are used more."""

    pinned = False
