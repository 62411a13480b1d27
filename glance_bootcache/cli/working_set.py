"""``bootcache working-set``: what a boot reads, as a table and as a picture."""

import argparse
import os
from typing import Any

from bootcache import exception
from bootcache.rpc.messages import GetWorkingSet
from bootcache.workingset import WorkingSet
from glance_bootcache.cli.arguments import image_id
from glance_bootcache.cli.listing import Listing, Showing


def _load(app: Any, source: str) -> WorkingSet:
    if os.path.exists(source):
        try:
            return WorkingSet.load(source)
        except exception.InvalidWorkingSet as error:
            raise exception.BootcacheError(
                f'{error}; is it a working set, as "bootcache build" writes beside a cache image'
                ' (.working-set.json)?') from error
    try:
        wanted = image_id(source)
    except argparse.ArgumentTypeError as error:
        raise exception.BootcacheError(f'{source} is neither a file nor an image id') from error
    document = app.storage_client().send(GetWorkingSet(wanted))
    if document is None:
        raise exception.BootcacheError(f'image {wanted} has no working set;'
                                       ' "bootcache image build" records one')
    return WorkingSet.from_json(document)


class WorkingSetShow(Listing):
    """Show a working set's extents, in first-read order."""

    nothing = 'the working set is empty: its boot read nothing'

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('source', metavar='image|file',
                            help='id of an image, or a working set file')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Tabulate the extents."""
        working_set = _load(self.app, parsed_args.source)
        return (('offset', 'length', 'seconds'),
                [(extent.offset, extent.length, extent.seconds) for extent in working_set.extents])


class Plot(Showing):
    """Draw a working set: offset in the base over time, or over bytes read."""

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('source', metavar='image|file',
                            help='id of an image, or a working set file')
        parser.add_argument('-o', '--output', default='working-set.png', metavar='FILE',
                            help='picture to write; the suffix gives the format'
                                 ' (default: working-set.png)')
        parser.add_argument('--over', choices=('time', 'bytes'), default='time',
                            help='what goes to the right (default: time)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Draw, and say where the picture is."""
        from glance_bootcache.cli import plot
        working_set = _load(self.app, parsed_args.source)
        try:
            plot.read_pattern(parsed_args.output, working_set, over=parsed_args.over)
        except (OSError, ValueError) as error:
            raise exception.BootcacheError(f'{parsed_args.output}: {error}') from error
        return (('file', 'bytes', 'extents'),
                (os.path.abspath(parsed_args.output), working_set.bytes,
                 len(working_set.extents)))
