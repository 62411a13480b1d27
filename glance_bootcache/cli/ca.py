"""``bootcache ca``: certificates of a small CA, for hosts that have none of a site's own."""

import argparse
import ipaddress
import re
from typing import Any

from bootcache import exception
from glance_bootcache.cli.arguments import count
from glance_bootcache.cli.listing import Listing
from glance_bootcache.smallca import SmallCA


def _host(text: str) -> list[str]:
    names = text.split(',')
    # Each becomes a directory, or a name that hosts are known by.
    if not all(re.fullmatch(r'[0-9A-Za-z][0-9A-Za-z.:-]{0,252}', name) for name in names):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a name of letters, digits, dots and dashes, or NAME,ADDRESS')
    for name in names:
        if ':' in name or re.fullmatch('[0-9.]+', name):
            try:
                ipaddress.ip_address(name)
            except ValueError:
                raise argparse.ArgumentTypeError(
                    f'{name!r} looks like an address, and is none, as 192.0.2.10 and 2001:db8::1'
                    ' are') from None
    return names


class CA(Listing):
    """Make certificates for hosts, and a small CA that signs them if there is none yet.

    Each host's files are in a folder with its name, as [bootcache]tls_directory takes them. A host
    that has some gets new ones; where it is named alone, for the addresses and names of before.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('directory', help='folder of the CA; who can read its ca-key.pem can'
                                              ' make certificates')
        parser.add_argument('hosts', type=_host, nargs='+', metavar='host',
                            help='NAME, or NAME,ADDRESS,... with all by which others connect to it;'
                                 ' NAME alone for a host that has a certificate: all of before')
        parser.add_argument('--days', type=count(3650), default=365, metavar='DAYS',
                            help='for how many days the certificates are valid, from 1 to 3650'
                                 ' (default: 365); the CA is for 3650 from when it is made')
        parser.add_argument('--revoke', action='store_true',
                            help='revoke all certificates that the hosts got, instead, in'
                                 ' ca-crl.pem')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Make them, and say where they are."""
        try:
            small = SmallCA(parsed_args.directory, may_make=not parsed_args.revoke)
            if parsed_args.revoke:
                path = small.revoke(names[0] for names in parsed_args.hosts)
                return ('host', 'revoked in'), [(names[0], path) for names in parsed_args.hosts]
            return ('host', 'files'), [
                (name, small.issue(name, others or self._earlier(small, name), parsed_args.days))
                for name, *others in parsed_args.hosts]
        except OSError as error:
            raise exception.RequestRefused(
                f'{error.filename or parsed_args.directory}: {error.strerror}; name a folder that'
                ' you may write') from error

    def _earlier(self, small: SmallCA, name: str) -> list[str]:
        """Return the addresses and further names that a host had, and tell of them."""
        others = small.earlier(name)
        if others:
            self.app.stderr.write(f'{name}: for {", ".join(others)} as well, as before\n')
        elif others is None:
            self.app.stderr.write(
                f'{name}: for this name alone, as the certificate that it had is not there any'
                f' more; if it had addresses, repeat this with them, as in {name},192.0.2.10\n')
        return others or []
