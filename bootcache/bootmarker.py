"""The console line by which a boot is known to be over, looked for at a bounded cost."""

import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import properties

LOG = logging.getLogger(__name__)

# Of one look, in seconds of this thread's processor time. Under eventlet all of nova-compute stands
# still meanwhile; an expression that people write takes a hundredth of it.
LOOK_SECONDS = 0.05
# Of a console's end; a boot is looked at each second.
_MOST_LINES = 200
_LINE_CHARACTERS = 1024


class BootMarker:
    """Looks for a boot marker on one boot's console.

    A tenant writes the expression and the text. One that takes longer than LOOK_SECONDS for a look
    is given up for this boot, which then ends without it.

    :param marker: regular expression.
    :param whose: the boot, for the log: ``server ID`` or ``image ID``.
    :raises ValueError: if it cannot be used.
    """

    def __init__(self, marker: str, whose: str):
        self._marker = marker
        self._expression = properties.compile_marker(marker)
        self._whose = whose
        self.given_up = False

    def seen(self, console: Callable[[], str]) -> bool:
        """Tell whether one of a console's last 200 lines matches, by a line's first 1,024
        characters.

        :param console: gives the text; not asked once the marker is given up.
        """
        if self.given_up:
            return False
        spent = 0.0
        for line in console().splitlines()[-_MOST_LINES:]:
            began = time.thread_time()
            try:
                # 0 would mean no limit.
                if self._expression.search(line[:_LINE_CHARACTERS],
                                           timeout=max(LOOK_SECONDS - spent, 0.001)):
                    return True
                spent += time.thread_time() - began
            except TimeoutError:
                spent = LOOK_SECONDS
            if spent >= LOOK_SECONDS:
                self.given_up = True
                LOG.warning('bootcache: the boot marker %r of %s takes more than %d ms a look and'
                            ' is given up: the boot ends without it; choose a simpler %s',
                            self._marker, self._whose, LOOK_SECONDS * 1000,
                            properties.BOOT_MARKER)
                return False
        return False
