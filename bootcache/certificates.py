"""Whether certificates can be used, and where none are needed: what is checked at start."""

import ipaddress
import os
import socket

from bootcache import exception, qemuimg, tls


def check(directory: str, endpoint: tls.Endpoint) -> None:
    """Check that QEMU takes a directory's files: they are there, fit each other, and are valid now.

    :raises CertificateExpired: if one is not valid any more, or not yet.
    :raises ConfigurationError: naming the option, the file and the cure.
    :raises Interrupted: if QEMU has not said so in time, as on a busy machine.
    """
    if not os.path.isabs(directory):
        raise exception.ConfigurationError(
            f'[bootcache]{tls.OPTION}={directory} is no absolute path; give one, as in'
            ' /etc/pki/bootcache')
    try:
        qemuimg.check_object(tls.credentials(tls.credentials_id(directory, endpoint), endpoint))
    except (exception.ConfigurationError, exception.Interrupted):
        raise
    except exception.BootcacheError as error:
        says = f'[bootcache]{tls.OPTION}={directory}: {error}'
        if 'has expired' in says:
            raise exception.CertificateExpired(f'{says}; renew it') from error
        if 'is not yet active' in says:
            raise exception.CertificateExpired(
                f'{says}; "date" shows whether this machine\'s clock is right') from error
        raise exception.ConfigurationError(
            f'{says}; put {tls.CA} there, and {endpoint.value}-cert.pem and'
            f' {endpoint.value}-key.pem of that CA ("openssl x509 -noout -text -in FILE" shows'
            ' one)') from error


def is_loopback(host: str) -> bool:
    """Tell whether an address, or all addresses of a name, are of this machine alone."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition('%')[0]).is_loopback for address in found)
