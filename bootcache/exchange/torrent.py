"""An immutable file, as those know it who exchange it: the hashes of its pieces, and whose CA.

It is a torrent of version 2 only (BEP 52: SHA-256, a tree of hashes for the file, so that of a
wrong block it is known who sent it), of one file, with the certificate of the CA that its members'
are to be of. Its name is the same for all files: a member's certificate has it as a DNS name,
beside which no other counts, so that certificates for NBD admit nobody here.
"""

import dataclasses
import os
import secrets
import tempfile
import time
from typing import Any

import libtorrent
from cryptography import x509

from bootcache import exception
from bootcache.exchange.limits import MOST_TORRENT_BYTES, piece_bytes
from bootcache.exchange.members import NAME


@dataclasses.dataclass(frozen=True)
class Torrent:
    """A file that can be exchanged.

    :ivar data: the torrent, bencoded.
    :ivar name: 64 hexadecimal digits: its info hash.
    :ivar size: of the file, in bytes.
    :ivar piece_bytes: of a piece.
    """

    data: bytes
    name: str
    size: int
    piece_bytes: int


def make(path: str, ca: str) -> Torrent:
    """Make the torrent of a file, for which all of it is read once.

    Two torrents of one file are not the same: who knows a file does not know its torrent's name.

    :param path: of the file.
    :param ca: the CA's certificate, in PEM.
    :raises ExchangeFailed: if the file cannot be read, or is empty.
    """
    try:
        size = os.stat(path).st_size
        if not size:
            raise exception.ExchangeFailed(f'{path} is empty: there is nothing to exchange')
        made = libtorrent.create_torrent(
            [libtorrent.create_file_entry(NAME, size)], piece_bytes(size),
            libtorrent.create_torrent.v2_only)
        made.set_root_cert(ca)
        with tempfile.TemporaryDirectory(prefix='bootcache-torrent') as directory:
            os.symlink(os.path.abspath(path), os.path.join(directory, NAME))
            # Without a callback it keeps all of this process waiting, seconds for each GB.
            libtorrent.set_piece_hashes(made, directory, lambda _piece: time.sleep(0))
    except (OSError, RuntimeError) as error:
        raise exception.ExchangeFailed(f'{path} cannot be read: {error}') from error
    entry = made.generate()
    entry[b'info'][b'salt'] = secrets.token_bytes(16)
    return read(libtorrent.bencode(entry))


def read(data: bytes) -> Torrent:
    """Read a torrent that others made.

    :raises ExchangeFailed: if it is none of the kind that ``make`` makes.
    """
    info = parse(data)
    return Torrent(data, str(info.info_hashes().v2), info.files().file_size(0),
                   info.piece_length())


def is_of_ca(data: bytes, ca: str) -> bool:
    """Tell whether a torrent's members are those of a CA, in whatever order its certificates are.

    :param ca: the CA's certificate, in PEM; there may be several.
    :raises ExchangeFailed: if it is none of the kind that ``make`` makes.
    """
    try:
        return set(x509.load_pem_x509_certificates(parse(data).ssl_cert().encode())) \
            <= set(x509.load_pem_x509_certificates(ca.encode()))
    except ValueError:
        return False


def parse(data: bytes) -> Any:
    """Read a torrent, as libtorrent has it.

    :raises ExchangeFailed: if it is none of the kind that ``make`` makes.
    """
    if len(data) > MOST_TORRENT_BYTES:
        raise exception.ExchangeFailed(f'a torrent of {len(data)} bytes is too large')
    try:
        entry: Any = libtorrent.bdecode(data)
        info = libtorrent.torrent_info(entry)
    except (RuntimeError, TypeError, ValueError) as error:
        raise exception.ExchangeFailed(f'it is no torrent: {error}') from error
    hashes = info.info_hashes()
    files = info.files()
    # libtorrent fills the last piece up with a file that is none.
    real = [number for number in range(files.num_files())
            if not files.file_flags(number) & libtorrent.file_flags_t.flag_pad_file]
    if hashes.has_v1() or not hashes.has_v2() or real != [0] or info.name() != NAME:
        raise exception.ExchangeFailed('the torrent is not of version 2, of one file and with the'
                                       f' name {NAME}')
    if not info.ssl_cert():
        raise exception.ExchangeFailed('the torrent names no CA: anybody could be a member')
    return info
