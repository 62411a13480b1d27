"""The clock of a machine of a stage: it can be set while the machine's processes run.

What they ask Python for is moved: the time, and the times that they give files. What the file
system itself gives a file that is made or written is not, as of a server for files whose clock is
another one: files then look to be an hour older than they are, or younger.
"""

import datetime
import os
import time
from multiprocessing.sharedctypes import RawValue
from typing import Any

from oslo_utils import timeutils


class Clock:
    """Made before the processes are that have it."""

    def __init__(self) -> None:
        # Of one word: nobody reads a half.
        self._moved = RawValue('d', 0.0)

    def move(self, seconds: float) -> None:
        """Set it, from another process as well.

        :param seconds: forward; less than 0: back.
        """
        self._moved.value += seconds

    def install(self) -> None:
        """Have this process go by it."""
        real_time, real_utime = time.time, os.utime

        def now() -> float:
            return real_time() + float(self._moved.value)

        def utime(path: Any, times: Any = None, **named: Any) -> None:
            if times is None and 'ns' not in named:
                times = now(), now()
            real_utime(path, times, **named)

        def utcnow(with_timezone: bool = False) -> datetime.datetime:
            found = datetime.datetime.fromtimestamp(now(), datetime.UTC)
            return found if with_timezone else found.replace(tzinfo=None)

        for module, name, value in ((time, 'time', now), (os, 'utime', utime),
                                    (timeutils, 'utcnow', utcnow)):
            setattr(module, name, value)
