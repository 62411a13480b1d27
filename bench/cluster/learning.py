"""Which boots are watched: the storage service's rule where none brings anything new."""

import collections

import simpy

from glance_bootcache.images.reportedboots import ExpectedReports

# As in glance_bootcache/images/reportedboots.py: so many boots in a row that bring nothing new are
# enough, and so many hosts are asked at a time.
_ENOUGH_BOOTS = 3
_EXPECTED_SECONDS = 1500    # [bootcache]profile_timeout, and ten minutes


class Learning:
    """Asks for reports of boots, and counts them; they are all alike.

    :param is_on: whether it asks at all: no report has come yet.
    """

    def __init__(self, env: simpy.Environment, is_on: bool):
        self._is_on = is_on
        self._expected = ExpectedReports(lambda: env.now)
        self._nothing_new: collections.Counter[int] = collections.Counter()

    def asks(self, image: int, host: int) -> bool:
        """Tell whether a host is asked to report the boot of a server of an image."""
        if not self._is_on or self._nothing_new[image] >= _ENOUGH_BOOTS:
            return False
        asked = self._expected.hosts(str(image))
        if str(host) not in asked and len(asked) >= _ENOUGH_BOOTS:
            return False
        self._expected.expect(str(image), str(host), '', _EXPECTED_SECONDS)
        return True

    def report(self, image: int, host: int) -> None:
        """A boot is reported; nothing that it read is new."""
        if self._expected.take(str(image), str(host)) is not None:
            self._nothing_new[image] += 1
