"""Whether a clone can be opened, found out before a daemon does that would wait for it."""

from collections.abc import Mapping

from bootcache import exception, qemuimg
from bootcache.breaker import Breaker

# After a failure nobody asks for so long: each that does waits.
_PAUSE_SECONDS = 10


class CephReach:
    """How Ceph answers who opens something there."""

    def __init__(self) -> None:
        self._health = Breaker(1, _PAUSE_SECONDS)

    def check(self, path: str, protocol: Mapping[str, object]) -> None:
        """Check that a clone can be opened.

        :param path: what messages call it.
        :param protocol: its block node, without its name.
        :raises StorageDaemonError: if it cannot.
        """
        if not self._health.may_ask():
            raise self._fault(path, 'Ceph did not answer just now')
        try:
            qemuimg.check_opens(protocol)
        except exception.Interrupted as error:
            self._health.failed()
            raise self._fault(path, error) from error
        except exception.BootcacheError as error:
            self._health.answered()
            raise self._fault(path, error) from error
        self._health.answered()

    @staticmethod
    def _fault(path: str, why: object) -> exception.StorageDaemonError:
        return exception.StorageDaemonError(f'{path} cannot be opened: {why}')
