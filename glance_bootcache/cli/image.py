"""``bootcache image``: what the storage service knows of images."""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

from bootcache import exception
from bootcache.quoting import one_line
from bootcache.rpc.client import all_entries
from bootcache.rpc.messages import (
    BuildImage,
    DeleteImage,
    GetImage,
    ImageHosts,
    ListImages,
    Message,
    PinImage,
)
from glance_bootcache.cli.arguments import image_id, seconds
from glance_bootcache.cli.client import utc
from glance_bootcache.cli.listing import Listing, Showing


def _shown(image: dict[str, Any]) -> dict[str, Any]:
    working_set = image['working_set'] or {}
    cache_image = image['cache_image'] or {}
    progress = image.get('progress') or {}
    return {
        'image_id': image['image_id'], 'name': one_line(image.get('name')),
        'state': image['state'], 'reason': image['reason'],
        'recorded_bytes': progress.get('recorded_bytes'), 'recording_host': progress.get('host'),
        'image_format': image['image_format'], 'stored_bytes': image['stored_bytes'],
        'virtual_bytes': image['virtual_bytes'], 'image_hash': image['image_hash'],
        'working_set_bytes': working_set.get('bytes'),
        'working_set_extents': working_set.get('extents'),
        'boot_seconds': working_set.get('boot_seconds'), 'ended_by': working_set.get('ended_by'),
        'recorded_by': working_set.get('recorded_by'),
        'working_set_version': working_set.get('version'),
        'cache_bytes': cache_image.get('bytes'), 'cache_data_bytes': cache_image.get('data_bytes'),
        'cache_extents': cache_image.get('extents'),
        'cache_cluster_bytes': cache_image.get('cluster_bytes'),
        'cache_sha256': cache_image.get('sha256'), 'quota': cache_image.get('quota'),
        'build_seconds': cache_image.get('build_seconds'), 'medium': image.get('medium'),
        'pinned': image.get('pinned'), 'settle': image.get('settle'),
        'kept_for': one_line(', '.join(image.get('kept_for') or ())),
        'node': one_line(image.get('node')),
        'updated_at': image['updated_at']}


def _not_known(image: str) -> exception.BootcacheError:
    return exception.BootcacheError(f'image {image} is not known to the storage service;'
                                    ' "bootcache image build" records it')


class ImageList(Listing):
    """List the images that the storage service knows."""

    nothing = ('the storage service knows no image yet; it takes up those that are registered in'
               ' Glance, and "bootcache image build ID" has it take up another one')

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate."""
        images = all_entries(self.app.storage_client().send, ListImages())
        return (('image_id', 'name', 'state', 'working_set_bytes', 'cache_bytes', 'reason'),
                [(image['image_id'], one_line(image.get('name')), image['state'],
                  (image['working_set'] or {}).get('bytes'),
                  (image['cache_image'] or {}).get('bytes'), image['reason'])
                 for image in images])


class ImageShow(Showing):
    """Show an image's state, working set and cache image."""

    # The storage service knows it if Glance does.
    is_known = False

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('image', type=image_id, help='id of the image')
        parser.add_argument('--wait', action='store_true',
                            help='wait until recording and building are over, showing progress')
        parser.add_argument('--timeout', type=seconds, default=1800, metavar='SECONDS',
                            help='how long to wait (default: 1800)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask until nothing is in hand for it, if that is to be waited for, and tabulate."""
        client, progress = self.app.storage_client(), self.app.progress()
        wanted, is_known = parsed_args.image, self.is_known
        deadline = time.monotonic() + parsed_args.timeout
        try:
            while True:
                image = client.send(GetImage(wanted))
                if image is None and is_known:
                    raise exception.BootcacheError(f'Glance has no image {wanted}')
                if not parsed_args.wait:
                    if image is None:
                        raise _not_known(wanted)
                    return self.dict2columns(_shown(image))
                if image is None:
                    # What tells the storage service of a new image may be on its way.
                    told = 'not known to the storage service'
                    progress.show(f'{told} yet')
                else:
                    is_known = True
                    told = one_line(f'{image["state"]} {image["reason"]}')
                    recorded = (image.get('progress') or {}).get('recorded_bytes') or 0
                    progress.show(image['state'], f'{recorded / 1e6:.1f} MB recorded' if recorded
                                  else one_line(image['reason']))
                    if not image['in_hand'] and image.get('progress') is None:
                        return self.dict2columns(_shown(image))
                if time.monotonic() > deadline:
                    raise exception.BootcacheError(f'image {wanted} is not done after'
                                                   f' {parsed_args.timeout:.0f} s; it is {told}')
                time.sleep(1)
        finally:
            progress.end()


class Where(Listing):
    """Show the tiers that an image's cache image is in, on the storage node and on hosts.

    The seconds in the column "seen" are since the host's last report. A host that is leaving lets
    go of the cache image as soon as no server of its needs it.

    With --exchange it shows who gave how much of the image's files to whom, as hosts told since
    the storage service was started: in the column "copies" in files, and in the column "way" how
    the file came to whom it was given: all by exchange, what was missing after a stall copied, or
    copied.
    """

    unnamed = {'host': '(storage node)', 'from': '(storage node)'}

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('image', type=image_id, help='id of the image')
        parser.add_argument('--exchange', action='store_true',
                            help='show who gave how much to whom')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate; the storage node comes first, and has no name."""
        answer = self.app.storage_client().send(ImageHosts(parsed_args.image))
        if answer is None:
            raise _not_known(parsed_args.image)
        if parsed_args.exchange:
            self.nothing = f'no host has told that it got {parsed_args.image} by exchange'
            return ('file', 'from', 'to', 'bytes', 'copies', 'way'), _given(
                answer.get('exchanged') or [])
        self.nothing = (f'neither the storage node nor a host that has reported has a cache image'
                        f' of {parsed_args.image}; "bootcache image show {parsed_args.image}" says'
                        ' how far it is')
        rows: list[tuple[Any, ...]] = []
        if answer['storage']:
            rows.append((None, f'storage {answer["storage"]}', answer.get('storage_bytes'), None,
                         None, None))
        rows += [(one_line(host['host']), f'compute {host["medium"]}', host['bytes'],
                  utc(host['last_use']), round(host['seen']), host['leaving'])
                 for host in answer['hosts']]
        return ('host', 'tier', 'bytes', 'last_use', 'seen', 'leaving'), rows


def _given(exchanged: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Tabulate who gave how much to whom: by file, what the storage node gave first."""
    rows = [(came['file'], one_line(giver) or None, one_line(came['to']), count,
             round(count / max(1, came['size']), 2), came['way'])
            for came in exchanged
            for giver, count in (*came['got'], *([['', came['copied']]] * bool(came['copied'])))]
    return sorted(rows, key=lambda row: (row[0], row[1] or '', row[2]))


class Build(ImageShow):
    """Record an image's boot and build its cache image, also if there is one."""

    is_known = True

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask for it, and show what becomes of it."""
        self.app.storage_client().send(BuildImage(parsed_args.image))
        return super().take_action(parsed_args)


class EachImage(Listing):
    """Does one thing with each of several images; unknown ones are named and make it fail.

    :ivar done: what is then so, as its column is named.
    :ivar value: what stands there.
    :ivar message: what is sent; the answer is whether the storage service knows the image.
    """

    done: str
    value = True
    message: Callable[[str], Message[bool]]

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('images', type=image_id, nargs='+', metavar='image',
                            help='ids of images')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Do it with all of them."""
        client = self.app.storage_client()
        unknown = [image for image in parsed_args.images if not client.send(self.message(image))]
        if unknown:
            raise exception.BootcacheError(
                f'not known to the storage service: {", ".join(unknown)};'
                ' "bootcache image list" shows those that are')
        return ('image_id', self.done), [(image, self.value) for image in parsed_args.images]


class Delete(EachImage):
    """Delete an image's cache image and working set; the image itself stays in Glance.

    It is not recorded again by itself, only by "bootcache image build".
    """

    done = 'deleted'
    message = DeleteImage


class Pin(EachImage):
    """Keep images' cache images in every tier that they are in.

    A compute host hears of it with the next server of the image.
    """

    done = 'pinned'
    message = staticmethod(functools.partial(PinImage, pinned=True))


class Unpin(EachImage):
    """Let images' cache images be evicted again when others are used more."""

    done = 'pinned'
    value = False
    message = staticmethod(functools.partial(PinImage, pinned=False))
