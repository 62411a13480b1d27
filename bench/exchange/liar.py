"""A member that says it has all of a file, and sends other bytes: libtorrent without its checks."""

import argparse
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import libtorrent

from bootcache.exchange import limits, torrent
from bootcache.exchange.members import NAME, Members


def main() -> None:
    """Lie until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument('address')
    parser.add_argument('port', type=int)
    parser.add_argument('network')
    parser.add_argument('certificates')
    parser.add_argument('torrent')
    options = parser.parse_args()
    data = Path(options.torrent).read_bytes()
    # Before libtorrent's threads begin, which are not to take it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with tempfile.TemporaryDirectory(dir='/dev/shm') as folder:
        Path(folder, NAME).write_bytes(random.Random(8).randbytes(torrent.read(data).size))
        parameters = libtorrent.session_params()
        settings: Any = {**limits.settings(limits.ExchangeLimits(
            options.address, options.port, (options.network,))), 'disable_hash_checks': True}
        parameters.settings = settings
        session = libtorrent.session(parameters)
        added = libtorrent.add_torrent_params()
        added.ti = torrent.parse(data)
        added.save_path = folder
        added.flags = libtorrent.torrent_flags.seed_mode
        session.add_torrent(added).set_ssl_certificate_buffer(
            *Members(options.certificates).introduction())
        signal.sigwait([signal.SIGTERM])


if __name__ == '__main__':
    main()
