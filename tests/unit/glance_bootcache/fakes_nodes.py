"""Homes of images: several storage nodes on one database, each with a directory of its own.

The database is SQLite's here, which the service refuses to share; tests/functional/test_nodes.py
has real services on MariaDB.
"""

import dataclasses
import os

import sqlalchemy as sa
from fakes_clock import Clock

from bootcache import savefile
from bootcache.manifest import (
    CacheDifference,
    CacheInfo,
    Made,
    Manifest,
    Standing,
    WorkingSetInfo,
)
from glance_bootcache.db.models import (
    FileRow,
)
from glance_bootcache.images import policy
from glance_bootcache.nodes.homes import Homes
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage import inspection
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SNAPSHOT = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MANY = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(20)]
CLONE, COPY, SERVER = 'rbd:bootcache//clone', 'rbd:bootcache//copy', 'bootcache-profile-x'
SET = WorkingSetInfo('ab' * 32, 8192, 2, 4096, 'nova', 'marker', 1.0, 'login:')
CACHE = CacheInfo('cache-x.qcow2', 13, 8192, 2, 'ab', 8192, 4096, 1 << 20, 'nbd:', 1.0, 1)
DIFFERENCE = CacheDifference(OTHER, 'sha512:00', 5, 'cd' * 32, 3, 2, 'ef' * 32)
RULES = inspection.RULES


class Cloud:
    """Three storage nodes; the attributes have each node's part, by its number.

    :ivar stores: theirs; what one writes the others see when they are refreshed.
    :ivar rows: what the nodes' rows say, for ``look``.
    """

    def __init__(self, database, path):
        self.database, self.path = database, path
        self.clock = Clock()
        self.numbers, self.stores, self.members, self.homes = [], {}, {}, {}
        for name in 'a', 'b', 'c':
            directory = path / name
            directory.mkdir()
            number = StorageNode(database, str(directory / 'node.json'), name,
                                 lambda seconds: None).id
            self.numbers.append(number)
            self.stores[number] = ImageStore(str(directory), database, number)
            self.members[number] = Membership(number, self.clock)
            (directory / 'glance').mkdir()
            self.homes[number] = Homes(self.stores[number], self.members[number],
                                       ['', str(directory / 'glance')])
        self.rows = {number: NodeRecord(number, name, 1)
                     for number, name in zip(self.numbers, 'abc', strict=True)}
        self.look()

    def look(self):
        """Have all nodes see all rows."""
        for membership in self.members.values():
            membership.observe(list(self.rows.values()))

    def pass_by(self, seconds, *silent):
        """Let seconds pass, in which some nodes do not beat."""
        while seconds > 0:
            self.clock.now += min(5, seconds)
            seconds -= 5
            for number in self.rows.keys() - set(silent):
                self.rows[number] = dataclasses.replace(self.rows[number],
                                                        beat=self.rows[number].beat + 1)
            self.look()

    def change(self, number, **changes):
        self.rows[number] = dataclasses.replace(self.rows[number], **changes)
        self.look()

    def refresh(self):
        for each in self.stores.values():
            each.refresh()

    def file(self, number, kind=FileKind.BASE, image=IMAGE):
        """A file that a node has made."""
        made = self.stores[number].begin_file(image, kind, '.img')
        with open(self.stores[number].path(image, made), 'w') as stream:
            stream.write(made)
        return made

    def put(self, number, image=IMAGE, **made):
        """An image of a node; files that ``made`` names have rows."""
        each = self.stores[number]
        each.add(Manifest(image))
        return each.change(image, lambda known: dataclasses.replace(
            known.standing_at(Standing.DONE), made=Made(**made)))

    def with_base(self, number, image=IMAGE):
        """An image of a node that has its base."""
        path = self.stores[number].path(image, self.file(number, image=image))
        self.put(number, image, base_path=path, base_hash='sha512:00', look_rules=RULES,
                 base_file=savefile.signature(path))
        self.refresh()
        return path

    def get_base(self, number, image=IMAGE):
        """Have a node have the base of an image that it has taken over."""
        path = self.stores[number].path(image, self.file(number, image=image))
        self.stores[number].change(image, lambda known: known.making(
            base_path=path, look_rules=RULES,
            base_file=savefile.signature(path)).standing_at(Standing.DONE))
        self.refresh()

    def change_image(self, number, change, image=IMAGE):
        self.stores[number].change(image, change)
        self.refresh()

    def restart(self, number):
        """Begin a new process, without upkeep."""
        directory = str(self.path / self.rows[number].name)
        self.stores[number] = ImageStore(directory, self.database, number)
        self.homes[number] = Homes(self.stores[number], self.members[number],
                                   ['', f'{directory}/glance'])

    def claim(self, number, home, image=IMAGE, base_path=''):
        return self.stores[number].claim(
            image, home, lambda known: policy.taken_over(
                known, base_path, known.made.base_file if base_path else None))

    def files(self, image=IMAGE):
        """The rows of files: number of the node, and state, by name."""
        return {row.name: (row.node_id, row.state) for row in self.database.read(
            lambda connection: connection.execute(sa.select(FileRow.__table__).where(
                FileRow.image_id == image)).all())}

    def on_disk(self, number, image=IMAGE):
        directory = self.stores[number].directory(image)
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def glance_file(cloud, number, content='base'):
    """Glance's file of the image, in the directory in which a node sees its store."""
    path = cloud.path / cloud.rows[number].name / 'glance' / IMAGE
    path.write_text(content)
    return str(path)
