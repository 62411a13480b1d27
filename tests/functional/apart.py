"""libtorrent in a process of its own.

libtorrent's wheel and Debian 13's Ceph have symbols of boost::system of the same names and other
layouts: a process that loads both corrupts its heap, and Nova's driver and Glance's store, which
other tests import, load Ceph's. So the tests' own process never loads libtorrent.
"""

import dataclasses
import importlib.util
import multiprocessing
import os
import random
from multiprocessing.managers import BaseManager

import pytest

needs_libtorrent = pytest.mark.skipif(importlib.util.find_spec('libtorrent') is None,
                                      reason='libtorrent is not installed')


class Torrents:
    """What is done with torrents: see bootcache/exchange/torrent.py."""

    def make(self, path, ca):
        """Return the entries of a file's torrent."""
        from bootcache.exchange import torrent
        return dataclasses.asdict(torrent.make(path, ca))

    def read(self, data):
        """Return the entries of a torrent that came."""
        from bootcache.exchange import torrent
        return dataclasses.asdict(torrent.read(data))

    def authority(self, data):
        """Return the CA's certificate in a torrent, in PEM."""
        from bootcache.exchange import torrent
        return torrent.parse(data).ssl_cert()

    def decode(self, data):
        """Return a bencoded document."""
        import libtorrent
        return libtorrent.bdecode(data)

    def encode(self, document):
        """Return a document bencoded."""
        import libtorrent
        return libtorrent.bencode(document)


class Session:
    """An exchange's session.

    :param settings: of libtorrent, in the place of ours.
    """

    def __init__(self, address, port, network, certificates, directory, settings):
        from bootcache.exchange import limits, session
        from bootcache.exchange.members import Members
        self._files = []
        given = limits.ExchangeLimits(address, port, (network,))
        ours = limits.settings
        limits.settings = lambda given: {**ours(given), **settings}
        try:
            self._session = session.ExchangeSession(given, Members(certificates), directory)
        finally:
            limits.settings = ours

    def fetch(self, data, path, peers):
        """Begin to get a file into a path, which stays open."""
        file = open(path, 'r+b')  # noqa: SIM115
        self._files.append(file)
        return self._session.fetch(data, file.fileno(), peers)

    def start_over(self, name, peers):
        """Begin anew."""
        self._session.start_over(name, peers)

    def look(self, name):
        """Return how far a file is."""
        return self._session.look(name)

    def files(self):
        """Return the files that it knows."""
        return self._session.files()

    def stop(self):
        """End it."""
        self._session.stop()
        for file in self._files:
            file.close()


class Liar:
    """A member that says it has all of a file, and sends other bytes.

    :param folder: for these; made.
    """

    def __init__(self, address, port, network, certificates, data, folder):
        import libtorrent

        from bootcache.exchange import limits, members, torrent
        os.mkdir(folder)
        with open(f'{folder}/{members.NAME}', 'wb') as stream:
            stream.write(random.Random(6).randbytes(torrent.read(data).size))
        parameters = libtorrent.session_params()
        parameters.settings = {
            **limits.settings(limits.ExchangeLimits(address, port, (network,))),
            'disable_hash_checks': True, 'alert_mask': 0}
        self._session = libtorrent.session(parameters)
        added = libtorrent.add_torrent_params()
        added.ti = torrent.parse(data)
        added.save_path = folder
        added.flags = libtorrent.torrent_flags.seed_mode
        self._handle = self._session.add_torrent(added)
        self._handle.set_ssl_certificate_buffer(*members.Members(certificates).introduction())

    def sent(self):
        """Return how many bytes it has sent."""
        return self._handle.status().total_payload_upload


class Apart(BaseManager):
    """The process."""


for made in (Torrents, Session, Liar):
    Apart.register(made.__name__, made)


def start():
    """Start such a process; ``shutdown()`` ends it and all that was made there."""
    manager = Apart(ctx=multiprocessing.get_context('spawn'))
    manager.start()
    return manager
