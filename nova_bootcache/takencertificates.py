"""Whether QEMU takes this host's certificates: looked at until it does, and when these change."""

from bootcache import certificates, tls


class TakenCertificates:
    """Has QEMU look at them.

    :param directory: ``[bootcache]tls_directory``; None if there is none.
    """

    def __init__(self, directory: str | None):
        self._directory = directory
        # The id of the files that QEMU has taken.
        self._taken = ''

    def look(self) -> None:
        """Look at the files that are there now, unless they are those that QEMU has taken.

        :raises CertificateExpired: if one is not valid any more, or not yet.
        :raises ConfigurationError: naming the option, the file and the cure.
        :raises Interrupted: if QEMU has not said so in time, as on a busy machine.
        """
        if self._directory is None:
            return
        # What was taken before may be no more what is there.
        taken, self._taken = self._taken, ''
        certificates.check_path(self._directory)
        found = tls.credentials_id(self._directory, tls.Endpoint.CLIENT)
        if found != taken:
            certificates.check(self._directory, tls.Endpoint.CLIENT)
        self._taken = found

    @property
    def are_right(self) -> bool:
        """Whether there are none, or QEMU has taken those that were looked at last."""
        return self._directory is None or bool(self._taken)
