"""Stand-ins of what snapshots under way need: the steps of one, and a Glance that takes uploads."""

import dataclasses
import threading

from bootcache.rpc.messages import SnapshotProgress


class Sends:
    """Stands for the steps of a snapshot, and for the store."""

    name = 'rbd'

    def __init__(self):
        self.stores, self.did, self.fails, self.goes_on = {'rbd': self}, [], {}, threading.Event()
        self.goes_on.set()
        self.gone, self.lost, self.url, self.work = True, [], 'rbd://x', ''
        self.sharing = 0

    def _do(self, what):
        self.did.append(what)
        if what in self.fails:
            raise self.fails[what]

    def choose(self, base):
        self._do('choose')
        return self.name

    def begin(self, record, base, virtual_bytes, certificate):
        assert self.goes_on.wait(10)
        self._do('begin')
        return dataclasses.replace(record, work=self.work), SnapshotProgress(
            export=record.export, server=('192.0.2.1', 10820), tls=True, disk_format='raw')

    def check_room(self, record):
        if 'room' in self.fails:
            raise self.fails['room']

    def finish(self, record, virtual_bytes, check, put):
        self._do('finish')
        return self.url

    def give_up(self, record):
        self._do('give_up')
        return self.gone

    def end(self, export):
        if export:
            self._do('end')

    def settled(self, record, until):
        self._do('settled')
        self.sharing -= 1
        return self.sharing < 0

    def discard(self, record):
        self._do('discard')
        return True

    def left(self):
        return self.lost

    def sweep(self):
        self._do('sweep')

    def tidy(self):
        pass

    def rest(self, is_idle):
        if is_idle():
            self._do('rest')


class Uploads:
    """Glance: what is uploaded."""

    def __init__(self):
        self.took, self.fails, self.begun, self.goes_on = {}, None, threading.Event(), \
            threading.Event()
        self.goes_on.set()

    def upload(self, image_id, stream, stored_bytes):
        if self.fails:
            raise self.fails
        first = stream.read(4)
        self.begun.set()
        assert self.goes_on.wait(10)
        self.took[image_id] = first + stream.read()
        assert len(self.took[image_id]) == stored_bytes
