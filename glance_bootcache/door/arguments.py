"""What the storage service's RPC methods take: the one place where their arguments are read.

Whoever can write to the message bus can say anything. Each reader takes a field's name and what was
said, and returns what the service works with; what cannot be is refused by the field's name.
Whether it is true is for others to judge. Everything here is pure.
"""

import dataclasses
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from bootcache import ending, naming, rpcapi, workingset
from bootcache.exception import MessageRefused
from bootcache.quoting import one_line, quoted

# Nova's column for it has as many characters.
LONGEST_NAME = 255
# A text that is for people is cut; one of so many characters is none.
_LONGEST_LINE = 500
_TOO_LONG_TEXT = 65536
MOST_BYTES = 1 << 62
# Images of one report.
MOST_IMAGES = 10_000
_MOST_HOSTS = 20_000
_MOST_AGGREGATES = 1000
_MOST_SECONDS = 1e9
# In seconds since the epoch: what is later than the year 9999 is no date to Python, nor in X.509.
LATEST = 253402300799.0
_IMAGE_ID = re.compile(r'[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}')
_HOST_NAME = re.compile(rf'[\w.:@%+-]{{1,{LONGEST_NAME}}}', re.ASCII)
# A distinguished name. In rules that are made of it a star would stand for any characters.
_CERTIFICATE = re.compile(r'[^*?]{0,1024}')
_SHA256 = re.compile(r'[0-9a-f]{64}')
_TOKEN = re.compile(r'[0-9a-f]{32}')
_VERSION = re.compile(r'[0-9]{1,4}\.[0-9]{1,4}')

Reader = Callable[[str, Any], Any]


def _refusal(field: str, value: Any, wanted: str) -> MessageRefused:
    return MessageRefused(field, f'{quoted(value)} is not {wanted}')


def image_id(field: str, value: Any) -> str:
    """Read an image's id; it may become part of a path.

    :returns: its canonical form.
    :raises MessageRefused: if it is no UUID; so do all others here.
    """
    if not isinstance(value, str) or not _IMAGE_ID.fullmatch(value):
        raise _refusal(field, value, 'an image\'s id')
    return naming.canonical_image_id(value)


def name(field: str, value: Any) -> str:
    """Read a name, as of a server or project: printable, and maybe empty."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable():
        raise _refusal(field, value, f'a name of at most {LONGEST_NAME} printable characters')
    return value


def host_name(field: str, value: Any) -> str:
    """Read a compute host's name, as Nova's option ``host`` has it."""
    if not isinstance(value, str) or not _HOST_NAME.fullmatch(value):
        raise _refusal(field, value, f'a host\'s name: 1 to {LONGEST_NAME} letters, digits and'
                       ' any of . : @ % + _ -')
    return value


def sha256(field: str, value: Any) -> str:
    """Read a SHA-256 in hexadecimal."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise _refusal(field, value, 'a SHA-256')
    return value


def token(field: str, value: Any) -> str:
    """Read a secret that a host has made: 32 hexadecimal digits."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        # Not what was said: it may be a secret.
        raise MessageRefused(field, 'is not 32 hexadecimal digits')
    return value


def address(field: str, value: Any) -> str:
    """Read an IPv4 or IPv6 address."""
    try:
        return str(ipaddress.ip_address(name(field, value)))
    except ValueError:
        raise _refusal(field, value, 'an address') from None


def text(longest: int) -> Reader:
    """Return a reader of what is for people: made one line, and cut.

    :param longest: characters that are kept.
    """
    def read(field: str, value: Any) -> str:
        if not isinstance(value, str) or len(value) > _TOO_LONG_TEXT:
            raise _refusal(field, value, f'a text of at most {_TOO_LONG_TEXT} characters')
        return one_line(value)[:longest]
    return read


def whole(least: int, most: int) -> Reader:
    """Return a reader of whole numbers."""
    def read(field: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _refusal(field, value, f'a whole number from {least} to {most}')
        return value
    return read


def number(most: float) -> Reader:
    """Return a reader of finite numbers from 0."""
    def read(field: str, value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise _refusal(field, value, f'a number from 0 to {most:g}')
        return float(value)
    return read


size = whole(0, MOST_BYTES)


def use_time(now: float) -> Reader:
    """Return a reader of times of use; nothing is used in the future.

    :param now: seconds since the epoch; a later time counts as now, as hosts' clocks differ.
    """
    def read(field: str, value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise _refusal(field, value, 'a time in seconds since the epoch')
        return float(min(value, now))
    return read


def certificate_name(field: str, value: Any) -> str:
    """Read the distinguished name in a certificate; empty if there is none."""
    if not isinstance(value, str) or not value.isprintable() or not _CERTIFICATE.fullmatch(value):
        raise _refusal(field, value, 'a distinguished name of at most 1024 printable characters,'
                                     ' without * and ?')
    return value


def one_of(*values: Any) -> Reader:
    """Return a reader of a few values."""
    def read(field: str, value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise _refusal(field, value, f'one of {", ".join(map(str, values))}')
        return value
    return read


def or_none(reader: Reader) -> Reader:
    """Return a reader that takes None as well."""
    return lambda field, value: None if value is None else reader(field, value)


def version(field: str, value: Any) -> str:
    """Read a version of bootcache/rpcapi.py."""
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise _refusal(field, value, 'a version')
    return value


def list_of(reader: Reader, most: int) -> Reader:
    """Return a reader of lists of which each entry is read."""
    def read(field: str, value: Any) -> list[Any]:
        return [reader(field, entry) for entry in sequence(field, value, most)]
    return read


def sequence(field: str, value: Any, most: int) -> list[Any]:
    """Read a list whose entries are looked at later."""
    if not isinstance(value, list | tuple):
        raise _refusal(field, value, 'a list')
    if len(value) > most:
        raise MessageRefused(field, f'{len(value)} entries are more than {most}')
    return list(value)


def mapping(field: str, value: Any, most: int) -> dict[Any, Any]:
    """Read a mapping whose entries are looked at later."""
    if not isinstance(value, dict):
        raise _refusal(field, value, 'a mapping')
    if len(value) > most:
        raise MessageRefused(field, f'{len(value)} entries are more than {most}')
    return value


def _extents(field: str, value: Any) -> list[Any]:
    # Each is looked at when the image's size is known: see bootcache/workingset.py.
    return sequence(field, value, workingset.MAX_EXTENTS)


def _giver(field: str, value: Any) -> tuple[str, int]:
    """Read an address, and how many bytes came from it."""
    if len(giver := sequence(field, value, 2)) != 2:
        raise _refusal(field, value, 'an address with a number of bytes')
    return address(field, giver[0]), size(field, giver[1])


def _granularity(field: str, value: Any) -> int:
    if not workingset.is_granularity(value):
        raise _refusal(field, value, 'a power of two from 512 to 2 MiB')
    return int(value)


def _report(field: str, value: Any) -> dict[str, Any]:
    """Read the frame of a host's report; entries are read one by one, by who keeps them."""
    report = mapping(field, value, 100)
    for part in ('images', 'quotas'):
        if report.get(part) is not None:
            mapping(f'{field}.{part}', report[part], MOST_IMAGES)
    if report.get('needs') is not None:
        sequence(f'{field}.needs', report['needs'], MOST_IMAGES)
    return report


@dataclasses.dataclass(frozen=True)
class Method:
    """What a method takes.

    :ivar needed: readers by argument.
    :ivar more: likewise, of those that may be left out.
    """

    needed: Mapping[str, Reader] = dataclasses.field(default_factory=dict)
    more: Mapping[str, Reader] = dataclasses.field(default_factory=dict)

    def read(self, said: Mapping[Any, Any]) -> dict[str, Any]:
        """Read a call's arguments.

        :raises MessageRefused: if one is missing, not known, or cannot be.
        """
        for field in self.needed:
            if field not in said:
                raise MessageRefused(field, 'is missing')
        readers = {**self.needed, **self.more}
        strange = next((field for field in said if field not in readers), None)
        if strange is not None:
            raise MessageRefused('arguments', f'{quoted(strange)} is not known')
        return {field: reader(field, said[field]) for field, reader in readers.items()
                if field in said}


_OF_AN_IMAGE = Method({'image_id': image_id})
_ANYBODY = Method()
_SECRET = or_none(name)
_BOOL = one_of(True, False)

METHODS: Mapping[str, Method] = {
    'image_registered': _OF_AN_IMAGE,
    'plan_boot': Method({'image_id': image_id, 'host': host_name, 'server_id': name,
                         'profile_token': _SECRET},
                        {'owner': name, 'certificate': certificate_name}),
    'boot_progress': Method({'image_id': image_id, 'profile_token': name,
                             'recorded_bytes': size}),
    'report_boot': Method(
        {'image_id': image_id, 'image_hash': name, 'host': host_name, 'granularity': _granularity,
         'extents': _extents, 'ended_by': one_of(*ending.ENDS),
         'boot_seconds': number(_MOST_SECONDS)},
        {'profile_token': _SECRET, 'line': text(_LONGEST_LINE), 'server_id': name}),
    'report_holdings': Method({'host': host_name, 'report': or_none(_report)}),
    'report_warm': Method({'image_id': image_id, 'host': host_name,
                           'outcome': one_of(*rpcapi.WARM_OUTCOMES),
                           'reason': text(_LONGEST_LINE)}),
    'promote_image': _OF_AN_IMAGE,
    'exchange_cache': Method({'image_id': image_id, 'host': host_name, 'sha256': sha256,
                              'address': address, 'port': whole(1, 65535), 'rack': name}),
    'exchange_base': Method({'image_id': image_id, 'host': host_name, 'image_hash': name,
                             'address': address, 'port': whole(1, 65535), 'rack': name}),
    'take_slot': Method({'host': host_name}),
    'hold_slot': Method({'host': host_name, 'holds': _BOOL}),
    'report_exchange': Method({'image_id': image_id, 'host': host_name, 'file': name,
                               'way': one_of(*rpcapi.WAYS),
                               'got': list_of(_giver, rpcapi.MOST_GIVERS),
                               'copied': size, 'gives': _BOOL}),
    'begin_snapshot': Method({'image_id': image_id, 'snapshot_id': image_id, 'host': host_name,
                              'certificate': certificate_name, 'token': token,
                              'virtual_bytes': whole(512, MOST_BYTES)}),
    'finish_snapshot': Method({'snapshot_id': image_id, 'token': token}),
    'upload_snapshot': Method({'snapshot_id': image_id, 'token': token}),
    'abandon_snapshot': Method({'snapshot_id': image_id, 'token': token}),
    'pin_image': Method({'image_id': image_id, 'pinned': _BOOL}),
    'serve_stored': Method({'image_id': image_id},
                           {'host': host_name, 'certificate': certificate_name}),
    'list_images': _ANYBODY,
    'get_image': _OF_AN_IMAGE,
    'get_working_set': _OF_AN_IMAGE,
    'list_hosts': _ANYBODY,
    'host_bases': Method({'host': host_name}),
    'image_hosts': _OF_AN_IMAGE,
    'evict_image': Method({'image_id': image_id,
                           'hosts': or_none(list_of(host_name, _MOST_HOSTS))}),
    'warm_image': Method({'image_id': image_id,
                          'aggregates': list_of(name, _MOST_AGGREGATES)}),
    'get_warming': _OF_AN_IMAGE,
    'build_image': _OF_AN_IMAGE,
    'delete_image': _OF_AN_IMAGE}
