"""Whatever happens to images and to three storage nodes that share a database, all is well when it
is quiet again: each image has one home, and each node has what its rows say.

Nodes are killed, stopped, cut off from the database, drained and forgotten; claims race with other
claims and with what the home of before writes. The database is SQLite here, which the service
refuses to share. There are no threads: what races comes before a write of another node, as the
machine says.
"""

import contextlib
import itertools
import os
import sqlite3
from typing import NamedTuple

import cachetools
import pytest
import sqlalchemy as sa
from fakes_convergence import IMAGES, Cloud, contents, image_ids, numbers, settings
from hypothesis import stateful
from hypothesis import strategies as st

from bootcache import locks
from bootcache.exception import RequestRefused
from bootcache.rpc.messages import SENDER, NodeWish
from bootcache.rpc.report import HostReport
from glance_bootcache.db.models import FileRow, ImageRow, StorageNodeRow
from glance_bootcache.nodes import node as node_rows
from glance_bootcache.nodes import routing
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.nodes.homes import Homes, HomeUpkeep, NodeAway
from glance_bootcache.nodes.leftovers import Leftovers
from glance_bootcache.nodes.membership import Membership, NodeRecord
from glance_bootcache.nodes.routing import HERE, NODE, Routing
from glance_bootcache.snapshots.records import Records
from glance_bootcache.storage import store

# Images that are files in Glance's store; others are downloaded.
FILED = IMAGES[:2]
# Between looks at others' beats.
_LOOK_SECONDS = 10
_WISHES = {'drained': NodeWish.DRAINED, 'forgotten': NodeWish.FORGOTTEN, 'nothing': None}


class Snapshot(NamedTuple):
    """What rows have: nodes' names, images with their homes, and files' states."""

    nodes: dict
    images: dict
    files: dict


class HandingOn(Routing):
    """Routing over a bus on which a node that works answers at once."""

    def __init__(self, cloud, node):
        super().__init__(None, node.name, node.homes, node.records, node.members,
                         node.house.metrics)
        self.cloud = cloud

    def _hand_on(self, message, context, name):
        other = next(node for node in self.cloud.nodes if node.name == name)
        if not self.cloud.is_awake(other):
            raise NodeAway(f'{name} does not answer')
        return self.cloud.move(other, self.cloud.answer, other, message, {NODE: self._own})


class Nodes(Cloud):
    """Images of a cloud with three storage nodes.

    :ivar troubles: what is wrong with nodes, by name: 'down' (its process was killed), 'stopped'
        (it does nothing, and goes on with what it has in memory) or 'faulty' (it does not find
        itself well, and so does not beat).
    :ivar races: what comes before a write, when so many were made.
    :ivar strays: files without a row, which a node left that was forgotten.
    """

    names = ('a', 'b', 'c')
    passes = (*Cloud.passes, NodeAway, RequestRefused)

    def __init__(self):
        self.troubles, self.races, self.strays = {}, None, set()
        # What was there before each write that is under way.
        self.writing = []
        # After so long all that do not beat are out.
        self.seen_seconds = 700
        super().__init__()
        for node in self.nodes:
            self.move(node, node.row.beat)

    def begin(self):
        super().begin()
        self.rows = sqlite3.connect(self.database.file, isolation_level=None)
        self.stack.callback(self.rows.close)
        # As on NFS: all nodes read the same files.
        self.store_dirs = [f'{self.directory}/glance']
        os.makedirs(self.store_dirs[0])

    def wire(self, node):
        super().wire(node)
        house, number = node.house, node.row.id
        house.store._moved = cachetools.TTLCache(100, store.MOVED_SECONDS, self.seconds)
        node.members = Membership(number, self.seconds)
        node.homes = Homes(house.store, node.members, self.store_dirs)
        node.records = Records(node.database, number)
        house.controller._home_for = node.homes.home_for
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(routing.messaging, 'get_rpc_client', lambda bus, target: None)
            node.routing = HandingOn(self, node)
        node.commands = NodeCommands(node.database, node.members, house.store)
        node.upkeep = HomeUpkeep(
            house.store, node.homes, node.members, house.controller, house.orders, node.records,
            lambda other: self.forget(node, other))
        house.upkeep._leftovers = Leftovers(
            house.store, node.homes, house.exporter, house.tiers, node.records,
            house.retiring.why_needed, self.seconds)
        node.row._membership = node.members
        node.row.beat()
        with contextlib.suppress(*self.passes):
            house.upkeep.recover()

    # The world.

    def is_awake(self, node):
        return self.troubles.get(node.name) not in ('down', 'stopped')

    def node(self, number):
        return next((node for again in range(len(self.nodes)) if self.is_awake(
            node := self.nodes[(number + again) % len(self.nodes)])), None)

    def die(self, node):
        self.troubles[node.name] = 'down'

    def restart(self, node):
        self.troubles.pop(node.name, None)
        super().restart(node)

    def recorded_again(self, node):
        """Those of which it is the home, or was."""
        return [image for image in IMAGES if node.house.store.home(image) == node.row.id]

    def forget(self, node, number):
        """As of node.py; what the other node has on its disk stays there."""
        rows = self.read(lambda connection: connection.execute(
            sa.select(FileRow.image_id, FileRow.name).where(FileRow.node_id == number)).all())
        is_forgotten = node_rows.forget(node.database, number, node.row.id)
        if is_forgotten:
            other = next(other for other in self.nodes if other.row.id == number)
            self.strays |= {(other.name, *row) for row in rows}
        return is_forgotten

    def beat(self, node):
        if self.is_awake(node) and node.name not in self.troubles and not node.row.beat():
            # Its row is gone, or another one: the process ends, and the next one begins.
            self.restart(node)

    def pass_by(self, seconds):
        """Let time pass, in which nodes beat, and look at each other's beats."""
        if not seconds:
            return
        if seconds > self.seen_seconds:
            self.seconds.sleep(seconds - self.seen_seconds)
            seconds = self.seen_seconds
        rows = self.read(lambda connection: connection.execute(
            sa.select(StorageNodeRow.__table__)).all())
        well = [node for node in self.nodes if node.name not in self.troubles
                and not node.is_cut and not self.is_database_away]
        beating = {node.row.id for node in well}
        # A beat is another one each time.
        looks = itertools.cycle([[NodeRecord(
            row.id, row.name, beat if row.id in beating else row.beat,
            row.state == node_rows.RESTORED, row.wish and NodeWish(row.wish)) for row in rows]
            for beat in (-1, -2)])
        well = [node for node in well if node.row.id in {row.id for row in rows}]
        while seconds > 0:
            self.seconds.sleep(min(seconds, _LOOK_SECONDS))
            seconds -= _LOOK_SECONDS
            seen = next(looks)
            for node in well:
                node.members.observe(seen)
            for node in self.nodes:
                if self.troubles.get(node.name) == 'faulty':
                    node.members.forget_clocks()
        for node in self.nodes:
            self.move(node, self.beat, node)
        self.forget_work()

    def write_rows(self, node, change):
        if self.races and not locks.held() and not node.is_killed:
            left, happens = self.races
            self.races = (left - 1, happens) if left else None
            if not left:
                happens(node)
        before = self.snapshot()
        self.writing.append(before)
        try:
            return super().write_rows(node, change)
        finally:
            self.writing.pop()
            after = self.snapshot()
            # In the midst of another node's write this one is none of that.
            for outer in self.writing:
                for then, found, now in zip(outer, before, after, strict=True):
                    for key in {*found, *now}:
                        if found.get(key) != now.get(key):
                            then.pop(key, None)
                            if key in now:
                                then[key] = now[key]
            self.check_write(node.row.id if node.row else None, before, after)

    def snapshot(self):
        """Return what rows have that nodes may not write for each other."""
        return Snapshot(
            dict(self.rows.execute('SELECT id, name FROM storage_nodes')),
            {image: tuple(row) for image, *row in self.rows.execute(
                'SELECT image_id, node_id, term, standing, goal, reason, image_hash, base_path,'
                ' base_hash, working_set_sha256, cache_file FROM images')},
            {tuple(key): state for *key, state in self.rows.execute(
                'SELECT node_id, image_id, name, state FROM files')})

    def check_write(self, own, before, after):
        """Check that a node has written what is its own."""
        for image, row in before.images.items():
            home, term = row[:2]
            now = after.images.get(image)
            is_taken = now is not None and now[:2] == (own, term + 1)
            self.must_be(now == row or home == own or is_taken,
                         f'{own} makes {now} of {image}, which is {row}')
            if is_taken:
                # Without a working set: what the home of before may have begun.
                self.allowed[image] += row[8] is None
        for key, state in before.files.items():
            self.must_be(
                key[0] == own or after.files.get(key) == state or key[0] not in after.nodes
                or (key[1] in before.images and key[1] not in after.images),
                f'{own} makes {after.files.get(key)} of {key}, which is {state}')

    def check_removal(self, node, image, name):
        if (node.name, image, name.removesuffix('.partial')) in self.strays:
            # What is half there was never to be kept.
            self.must_be(name.endswith('.partial'), f'{name} is removed')
        else:
            super().check_removal(node, image, name)

    def put(self, image, content, *arguments, **named):
        before = self.glance.images.get(image, (None,))[0]
        super().put(image, content, *arguments, **named)
        if image in FILED and content != before:
            path = os.path.join(self.store_dirs[0], image)
            with open(f'{path}.new', 'wb') as stream:
                stream.write(content)
            os.rename(f'{path}.new', path)

    def drop(self, image):
        super().drop(image)
        if image in FILED:
            os.unlink(os.path.join(self.store_dirs[0], image))

    def ask(self, number, message):
        node = self.node(number)
        return node and self.move(node, self.answer, node, message, {})

    def answer(self, node, message, context):
        found = node.routing.answer(message, {SENDER: 'host', **context})
        return self.do(node, message) if found is HERE else found

    # What happens.

    @stateful.initialize(homes=st.lists(st.tuples(numbers, contents), max_size=len(IMAGES)))
    def begin_with(self, homes):
        """Images that are ready."""
        for image, (number, content) in zip(IMAGES, homes, strict=False):
            self.register(number, image, content, 'told', 'public')
        self.become_quiet()
        self.pass_by(5)
        for node in self.nodes:
            self.follow_once(node)

    def follow_once(self, node):
        """What a node's threads do by themselves each few seconds."""
        self.move(node, node.upkeep.once)
        self.move(node, self.remove_leftovers, node)

    def remove_leftovers(self, node):
        with contextlib.suppress(*self.passes):
            node.house.upkeep._leftovers.remove()

    @stateful.rule(number=numbers, trouble=st.sampled_from(['down', 'stopped', 'faulty', 'cut']),
                   seconds=st.sampled_from([0, 25, 25, 605]), other=numbers)
    def befall(self, number, trouble, seconds, other):
        """After that time, another node is asked for the images of a node that is in trouble."""
        node = self.nodes[number]
        if self.troubles.get(node.name) != 'down':
            if trouble == 'cut':
                node.is_cut = True
            else:
                node.is_killed = trouble == 'down'
                self.troubles[node.name] = trouble
        self.pass_by(seconds)
        if seconds and other != number:
            for image in IMAGES:
                if self.home_number(image) == node.row.id:
                    self.take_over(other, image)

    @stateful.rule(number=numbers)
    def come_back(self, number):
        node = self.nodes[number]
        if self.troubles.pop(node.name, '') == 'down':
            self.restart(node)
        node.is_cut = False

    @stateful.rule(number=numbers, seconds=st.sampled_from([0, 5, 25]), all_do=st.booleans())
    def follow(self, number, seconds, all_do):
        """What nodes do each five seconds."""
        self.pass_by(seconds)
        for again in range(len(self.nodes) if all_do else 1):
            node = self.nodes[(number + again) % len(self.nodes)]
            if self.is_awake(node):
                self.follow_once(node)

    @stateful.rule(number=numbers, which=numbers, wish=st.sampled_from(list(_WISHES)))
    def wish(self, number, which, wish):
        """An operator asks a node to write it."""
        if node := self.node(number):
            self.move(node, node.commands.set_wish, self.names[which], _WISHES[wish])

    @stateful.rule(number=numbers, image=image_ids)
    def take_over(self, number, image):
        """A message of any kind about an image has come to a node."""
        if node := self.node(number):
            self.move(node, node.homes.route, image)

    @stateful.rule(number=numbers, images=st.sets(image_ids), told=st.booleans())
    def report(self, number, images, told):
        """A host tells which bases its servers need."""
        node = self.node(number)
        if node is None:
            return
        report = HostReport(needs=frozenset(images))
        node.house.needs.note('host', report)
        self.move(node, node.house.writer.write, True)
        for other in self.nodes:
            if told and other is not node and self.is_awake(other):
                other.house.needs.note('host', report, is_told=True)

    @stateful.rule(number=numbers, image=image_ids, reads=st.booleans())
    def connect(self, number, image, reads):
        """A host is connected to a node's exporter, which outlives the node's process."""
        readers = self.nodes[number].house.exporter.readers
        (readers.add if reads else readers.discard)(image)

    @stateful.rule(number=numbers, image=image_ids, left=st.integers(0, 3),
                   what=st.sampled_from(['claim', 'follow', 'look', 'step', 'tell']))
    def race(self, number, image, left, what):
        """Before a node writes what it has read, another one does something."""
        def happens(node):
            other = self.node(number)
            if other is None or other is node:
                return
            match what:
                case 'claim':
                    home = other.house.store.home(image)
                    if home not in (None, other.row.id):
                        self.move(other, other.homes.take_over, image, home)
                case 'follow':
                    self.follow_once(other)
                case 'look':
                    if image in other.house.controller.queue.ready():
                        self.move(other, other.house.controller.queue.run, image)
                case 'step':
                    if other.pending:
                        self.move(other, other.pending.pop(0))
                case 'tell':
                    self.tell(number, image, 'told', 'image_changed')

        self.races = left, happens

    # What has to be.

    def calm(self):
        super().calm()
        # Who is gone is away by then.
        self.races, self.seen_seconds = None, 30
        wishes = {row.name: row.wish for row in self.read(lambda connection: connection.execute(
            sa.select(StorageNodeRow.name, StorageNodeRow.wish)).all())}
        gone = [node for node in self.nodes if self.troubles.get(node.name) == 'down'
                and wishes.get(node.name, 'forgotten') == 'forgotten']
        for node in self.nodes:
            node.house.exporter.readers.clear()
            if node in gone and len(gone) < len(self.nodes):
                continue
            if self.troubles.pop(node.name, '') == 'down':
                self.restart(node)
        for node in self.working():
            self.move(node, self.beat, node)
            # The host tells of it again, as it hears of another node.
            node.house.needs.note('host', HostReport(needs=frozenset()))

    def working(self):
        return [node for node in self.nodes if node.name not in self.troubles]

    def once(self, node):
        super().once(node)
        node.upkeep.once()

    def quiet(self):
        super().quiet()
        assert self.snapshot().nodes.keys() == {
            node.row.id for node in self.working()}, 'who is forgotten is gone'

    def home_number(self, image):
        return self.read(lambda connection: connection.execute(sa.select(
            ImageRow.node_id).where(ImageRow.image_id == image)).scalar())

    def home(self, image):
        number = self.home_number(image)
        working = self.working()
        if number is None:
            return working[0]
        home = next((node for node in working if node.row.id == number), None)
        assert home is not None, f'the home of {image} is {number}'
        return home

    def check(self, image):
        super().check(image)
        home = self.home(image)
        record = home.house.store.load(image)
        working = self.working()
        if record is not None:
            takers = [node for node in working if node.members.takes_images]
            assert home in takers or not takers, f'{home.name} is to be left'
        for node in working:
            assert node.house.store.anywhere(image) == record, node.name
            if node is not home and record is not None:
                self.check_given_up(node, image, record)

    def check_files(self, node, image, named):
        assert self.files(node, image) == dict.fromkeys(named, 'ready'), node.name
        assert {name for name in self.on_disk(node, image)
                if (node.name, image, name.removesuffix('.partial')) not in self.strays} \
            == named, node.name


Nodes.TestCase.settings = settings(150)


@pytest.mark.usefixtures('no_daemons')
class TestNodes(Nodes.TestCase):
    """Runs the machine."""
