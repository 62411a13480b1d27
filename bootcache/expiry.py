"""Until when certificates are valid, told before they end: at most once a day for each file."""

import datetime
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from cryptography import x509
from oslo_log import log as logging

from bootcache import tls
from bootcache.exchange import members

LOG = logging.getLogger(__name__)

WARN_SECONDS = 30 * 86400
AGAIN_SECONDS = 86400
_PEM = rb'-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----'


class Expiry:
    """Tells of certificates in a directory that end soon, or have.

    What cannot be read is nothing to it: who uses the files tells of that.

    :param directory: ``[bootcache]tls_directory``; None if there is none.
    :param files: names of those that are in use.
    :param clock: seconds since the epoch.
    """

    def __init__(self, directory: str | None, files: Sequence[str],
                 clock: Callable[[], float] = time.time):
        self._directory = directory
        self._files = files
        self._clock = clock
        # When it was said of a file that it ends, or that it has ended (True).
        self._said: dict[tuple[str, bool], float] = {}

    def look(self) -> None:
        """Look at all of them."""
        if self._directory is None:
            return
        now = self._clock()
        for name in self._files:
            path = os.path.join(self._directory, name)
            end = _end(path)
            if end is None or end - now > WARN_SECONDS:
                continue
            said = self._said.get((name, end <= now))
            if said is not None and 0 <= now - said < AGAIN_SECONDS:
                continue
            self._said[name, end <= now] = now
            self._tell(path, end, now)

    def earliest(self) -> float | None:
        """Return when the first of them ends, or has ended, in seconds since the epoch.

        :returns: None if there is none that can be read.
        """
        if self._directory is None:
            return None
        return min((end for name in self._files
                    if (end := _end(os.path.join(self._directory, name))) is not None),
                   default=None)

    def _tell(self, path: str, end: float, now: float) -> None:
        when = datetime.datetime.fromtimestamp(end, datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')
        if end <= now:
            LOG.error('[bootcache]%s=%s: %s has expired, on %s: connections that are there go on,'
                      ' and none is made by it any more; renew it, in the same place',
                      tls.OPTION, self._directory, path, when)
            return
        hours = int(end - now) // 3600
        LOG.warning('[bootcache]%s=%s: %s ends on %s, in %s: no connection is made by it from then'
                    ' on; renew it before, in the same place, and restart nothing', tls.OPTION,
                    self._directory, path, when,
                    f'{hours // 24} days' if hours >= 48 else f'{hours} hours')


def configured(group: Any, endpoint: tls.Endpoint) -> Expiry:
    """Return what tells of the certificates that a service's options name.

    :param group: the options.
    :param endpoint: which end of NBD connections the service is.
    """
    return Expiry(group.tls_directory or None, [
        tls.CA, f'{endpoint.value}-cert.pem',
        *[members.CERTIFICATE] * bool(group.exchange_address)])


def _end(path: str) -> float | None:
    """Return when a file's certificates are of no more use, in seconds since the epoch.

    The first of a chain to end ends it. Of several CAs, as during a change, one is enough.
    """
    try:
        with open(path, 'rb') as stream:
            ends = [_until(x509.load_pem_x509_certificate(pem))
                    for pem in re.findall(_PEM, stream.read(), re.DOTALL)]
    except (OSError, ValueError):
        return None
    if not ends:
        return None
    return max(ends) if os.path.basename(path) == tls.CA else min(ends)


def _until(certificate: x509.Certificate) -> float:
    # Before 42.0 cryptography had it without a time zone only.
    end: datetime.datetime = certificate.not_valid_after_utc \
        if hasattr(certificate, 'not_valid_after_utc') \
        else getattr(certificate, 'not_valid_after').replace(tzinfo=datetime.UTC)  # noqa: B009
    return end.timestamp()
