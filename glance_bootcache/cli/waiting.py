"""Commands that ask the storage service for something, and wait for what comes of it."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from bootcache import exception
from glance_bootcache.cli.arguments import image_id, seconds
from glance_bootcache.cli.client import Away, Refused
from glance_bootcache.cli.listing import Listing
from glance_bootcache.cli.progress import ProgressLine

_PERIOD_SECONDS = 1.0
# Names in a message; the table has all of them.
_MOST_NAMES = 20


def names(some: Sequence[str]) -> str:
    """Return names for a message, the rest counted if there are many."""
    more = len(some) - _MOST_NAMES
    return ', '.join(some[:_MOST_NAMES]) + (f' and {more} more' if more > 0 else '')


class WaitingLister(Listing):
    """What came of it is a table; the error, if there is one, follows the table.

    :ivar complaints: what did not come; each names the things at fault.
    """

    default_timeout: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.complaints: list[str] = []

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('images', type=image_id, nargs='+', metavar='image',
                            help='ids of images')
        parser.add_argument('--no-wait', action='store_true',
                            help='only ask for it; "bootcache image where" shows what came of it')
        parser.add_argument('--timeout', type=seconds, default=self.default_timeout,
                            metavar='SECONDS',
                            help=f'how long to wait (default: {self.default_timeout})')
        return parser

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str],
                       data: Any) -> int:
        """Give the table out, then fail if there is something to complain of."""
        code = super().produce_output(parsed_args, column_names, data)
        if self.complaints:
            # As one thing may be wrong with several images.
            raise exception.BootcacheError('; '.join(dict.fromkeys(self.complaints)))
        return code

    def ask_each(self, images: Sequence[str], ask: Callable[[str], Any]) -> dict[str, Any]:
        """Ask for each image; one that is refused is complained of, and stops no other.

        :returns: the answers, by image.
        """
        answers = {}
        for image in dict.fromkeys(images):
            try:
                answers[image] = ask(image)
            except Refused as error:
                self.complaints.append(str(error))
        return answers

    def wait(self, progress: ProgressLine, step: Callable[[], bool], timeout: float) -> bool:
        """Repeat a step until it is the last one; a storage service that is away may come back.

        :param step: returns True if there is nothing more to wait for.
        :param timeout: seconds.
        :returns: False if time ran out.
        """
        deadline = time.monotonic() + timeout
        away = ''
        while True:
            try:
                if step():
                    return True
                away = ''
            except Away as error:
                if not away:
                    progress.line(f'{error}; it is asked again until time is out')
                away = str(error)
            left = deadline - time.monotonic()
            if left <= 0:
                self.complaints += [away] if away else []
                return False
            time.sleep(min(_PERIOD_SECONDS, left))
