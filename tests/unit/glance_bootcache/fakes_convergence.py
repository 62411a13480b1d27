"""Images of a cloud and the storage nodes that keep them, as a state machine of hypothesis.

Glance, Nova and the exporters are stand-ins (fakes_manager.py): they are away, full, late or silent
as the machine says. The database is SQLite; it is away, its answer to a commit is lost, another
process writes before this one does, as the machine says. There are no threads: each look and each
step is a move.

Where a comment says "known:" the service is not yet as it should be, and the machine passes it
over.
"""

import collections
import contextlib
import datetime
import os
import tempfile

import hypothesis
import pytest
import sqlalchemy as sa
from conftest import without_qemu
from fakes_clock import Clock
from fakes_convergence_nodes import (
    MISTAKES,
    Executor,
    Killed,
    Node,
    Queue,
    database_conf,
    empty_database,
)
from fakes_manager import SIZE, FakeBoots, FakeImages
from hypothesis import stateful
from hypothesis import strategies as st
from oslo_db.sqlalchemy import engines
from sqlalchemy import event

from bootcache import locks, savefile, steps
from bootcache.exception import DatabaseAway, ServiceAway
from bootcache.manifest import Availability, Goal, ImageState, Standing
from bootcache.reasons import Reason
from bootcache.rpc.messages import BuildImage, DeleteImage, PlanBoot
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import FileRow, ImageRow, WorkingSetRow
from glance_bootcache.images import controller, imagework, turns
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage import nodefiles
from glance_bootcache.storage.store import ImageStore
from tools import storedimages

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(4)]
CONTENTS = [bytes([number]) * SIZE for number in range(3)]
# Others each time if somebody says how many; the same else.
RUNS = int(os.environ.get('BOOTCACHE_CONVERGENCE_RUNS', '0'))
# To make a failing run short takes minutes, and is asked for.
PHASES = tuple(hypothesis.Phase) if 'BOOTCACHE_CONVERGENCE_SHRINKS' in os.environ \
    else (hypothesis.Phase.explicit, hypothesis.Phase.generate)
_HOUR = 3600.0
# In which all is well; what fails is tried again after a day at the latest.
_QUIET_HOURS = 30
# Of an image before it is at rest.
_MOST_STEPS = 5
_MOST_LOOKS = 20


def settings(runs):
    """Return how often a machine runs, and how.

    :param runs: if nobody says how many.
    """
    return hypothesis.settings(
        max_examples=RUNS or runs, derandomize=not RUNS, stateful_step_count=40,
        report_multiple_bugs=False, phases=PHASES, deadline=None, database=None,
        suppress_health_check=list(hypothesis.HealthCheck))


image_ids = st.sampled_from(IMAGES)
contents = st.integers(0, len(CONTENTS) - 1)
tells = st.sampled_from(['', 'told', 'told', 'told twice'])
# Of a node; where there are fewer, the same one has several.
numbers = st.integers(0, 2)


class Cloud(stateful.RuleBasedStateMachine):
    """Images of a cloud, and nodes that keep them.

    :cvar names: of the nodes.
    :cvar passes: what whoever has asked is told, who asks again; an event stays on the bus.
    :ivar store_dirs: directories of Glance's file store that nodes read.
    :ivar at_work: the node that is doing something.
    """

    names = ('storage-1',)
    passes = (OSError, DatabaseAway)

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.stack = contextlib.ExitStack()
        self.directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.at_work, self.store_dirs = None, []
        # Mistakes, also where the service has gone on after them.
        self.wrong = []
        self.patch.setattr(controller, 'WorkQueue', lambda work, workers, name, failed, clock:
                           Queue(self.wrong, work, failed, clock))
        self.patch.setattr(turns.futurist, 'ThreadPoolExecutor',
                           lambda max_workers: Executor(self.at_work.pending))
        self.patch.setattr(storedimages, 'opened', lambda *_arguments: self.at_work.open())
        self.patch.setattr(steps, 'reached', self.reached)
        self.unlink = os.unlink
        self.patch.setattr(os, 'unlink', self.remove)
        self.patch.setattr(savefile, 'commit', self.commit)
        # There are no other threads, and on a machine that is busy it takes milliseconds.
        self.patch.setattr(engines, '_thread_yield', lambda *_arguments: None)
        with open(f'{self.directory}/bootcache.sqlite', 'wb') as stream:
            stream.write(empty_database())
        self.database = Database(database_conf(self.directory))
        event.listen(self.database._engine, 'connect',
                     lambda connection, _record: connection.execute('PRAGMA synchronous = OFF'))
        self.stack.callback(self.database.close)
        self.write = self.database.write
        # A connection that stays is ten times as fast.
        self.reading = self.stack.enter_context(self.database._engine.connect())
        self.is_full = self.is_building_away = self.is_database_away = False
        self.is_answer_lost = self.is_overtaken = False
        # What another process has written into images' rows.
        self.pinned = {}
        self.glance, self.nova, self.seconds = FakeImages(), FakeBoots(), Clock()
        self.run_boot, self.nova.run = self.nova.run, self.boot
        self.qemu = without_qemu(self.patch)
        self.qemu.building = self.building
        # What Glance has told of, and to which node; and how often each image may have been
        # recorded.
        self.notified, self.told, self.asked_for = set(), set(), set()
        # Images whose cache image left storage disk: the next server's boot has it built again.
        self.evicted = set()
        # Of owners, and of rows.
        self.changes = self.writes = 0
        # What comes in the midst of a step, when it has come so far.
        self.meanwhile = None
        self.recordings, self.allowed = collections.Counter(), collections.Counter()
        # What each node did for each image since anything has happened, or time has passed.
        self.looks, self.steps = collections.Counter(), collections.Counter()
        do = imagework.ImageWork.do

        def counted(work, job, facts):
            node = self.at_work
            self.steps[node.name, job.image_id] += 1
            node.is_in_step = True
            try:
                return do(work, job, facts)
            except MISTAKES as error:
                self.wrong.append(error)
                raise
            finally:
                node.is_in_step = False

        self.patch.setattr(imagework.ImageWork, 'do', counted)
        self.patch.setattr(ImageJob, 'pause', lambda _job, _seconds: self.pause())
        self.begin()
        self.nodes = []
        for name in self.names:
            self.nodes.append(Node(self, name))

    def begin(self):
        """Make what all nodes have, before there are any."""

    def wire(self, node):
        """Make what a node has beside, when its process has begun."""
        house = node.house
        house.deletions._delay = 300

    def node(self, number):
        """Return a node that can be asked; None if there is none."""
        return self.nodes[number % len(self.nodes)]

    # The world.

    @contextlib.contextmanager
    def acting(self, node):
        """Have a node do what the block does."""
        before, self.at_work = self.at_work, node
        try:
            yield
        finally:
            self.at_work = before

    def reached(self, name):
        node = self.at_work
        if self.meanwhile and node.is_in_step and not locks.held():
            left, happens = self.meanwhile
            self.meanwhile = (left - 1, happens) if left else None
            if not left and node.kill_after is None:
                happens()
        if node.kill_after is not None:
            node.kill_after -= 1
            if node.kill_after < 0:
                node.is_killed = True
                raise Killed(name)

    def remove(self, path, **named):
        node = self.at_work
        if node is not None and node.is_killed:
            return
        directory, name = os.path.split(path)
        image = os.path.basename(directory)
        if image in IMAGES and os.path.exists(path):
            self.must_be(path.startswith(f'{node.directory}/'), f'{node.name} removes {path}')
            self.check_removal(node, image, name)
        self.unlink(path, **named)

    def check_removal(self, node, image, name):
        is_partial = name.endswith('.partial')
        state = self.files(node, image).get(name.removesuffix('.partial'))
        self.must_be(state == 'retiring' or (state == 'making' and is_partial),
                     f'{node.name} removes {name}, which is {state}')

    def must_be(self, is_so, otherwise):
        """Note a mistake; the service may catch the error."""
        if not is_so:
            self.wrong.append(AssertionError(otherwise))
            raise self.wrong[-1]

    def pause(self):
        """A step waits for the database, to write what it has made."""
        self.is_database_away = self.at_work.is_cut = False

    def commit(self, partial, target):
        if self.at_work.is_killed:
            raise Killed(target)
        if self.is_full:
            raise OSError(28, 'No space left on device')
        os.rename(partial, target)

    def read_rows(self, node, query):
        if node.is_killed:
            raise Killed('a read')
        if self.is_database_away or node.is_cut:
            raise DatabaseAway('it is away')
        return self.read(query)

    def write_rows(self, node, change):
        if node.is_killed:
            raise Killed('a write')
        if self.is_database_away or node.is_cut:
            raise DatabaseAway('it is away')
        self.overtake()
        self.writes += 1
        answer = self.write(change)
        if self.pinned:
            left = self.read(lambda connection: set(connection.execute(
                sa.select(ImageRow.image_id)).scalars()))
            self.pinned = {image: pinned for image, pinned in self.pinned.items() if image in left}
        self.reached('a commit')
        if self.is_answer_lost:
            self.is_answer_lost = False
            raise DatabaseAway('its answer is lost')
        return answer

    def overtake(self):
        """Another process writes, after this one has read."""
        if not self.is_overtaken:
            return
        self.is_overtaken = False
        self.pinned = {row.image_id: not row.pinned for row in self.read(
            lambda connection: connection.execute(
                sa.select(ImageRow.image_id, ImageRow.pinned)).all())}
        self.write(lambda connection: connection.execute(sa.update(ImageRow).values(
            version=ImageRow.version + 1, pinned=~ImageRow.pinned)))

    def read(self, query):
        with self.reading.begin():
            return query(self.reading)

    def files(self, node, image):
        """The states of an image's files on a node, as rows have them."""
        return {row.name: row.state for row in self.read(lambda connection: connection.execute(
            sa.select(FileRow).where(FileRow.image_id == image,
                                     FileRow.node_id == node.row.id)).all())}

    @staticmethod
    def on_disk(node, image):
        """The files of an image that a node has."""
        directory = node.house.store.directory(image)
        return set(os.listdir(directory)) if os.path.exists(directory) else set()

    def working_sets(self, image):
        """The working sets of an image that are rows."""
        return self.read(lambda connection: set(connection.execute(sa.select(
            WorkingSetRow.sha256).where(WorkingSetRow.image_id == image)).scalars()))

    def building(self):
        if self.is_building_away:
            raise OSError(28, 'No space left on device')

    def boot(self, image, virtual_bytes, policy, job):
        if self.nova.away:
            raise ServiceAway('Nova is away')
        self.recordings[image.image_id] += 1
        return self.run_boot(image, virtual_bytes, policy, job)

    def move(self, node, call, *arguments):
        """Have a node do something, which its process may not survive."""
        with self.acting(node):
            try:
                return call(*arguments)
            except Killed:
                self.die(node)
            except self.passes:
                pass
        return None

    def die(self, node):
        """A node's process was killed."""
        self.restart(node)

    def restart(self, node):
        node.is_killed, node.kill_after = False, None
        # A service that starts waits for it.
        self.is_database_away = node.is_cut = False
        self.is_answer_lost = self.is_overtaken = False
        self.forget_work()
        node.pending.clear()
        node.house.running._jobs.clear()
        for image in self.recorded_again(node):
            self.allowed[image] += 1
        with self.acting(node):
            node.house.store = node.house.tiers.store = node.open()
            node.house.store.retire_left()
            # What was heard of, and not looked at, a crash forgets.
            self.told -= {(image, node.name) for image in IMAGES
                          if node.house.store.anywhere(image) is None}
            node.house.restart()
            self.wire(node)
            with contextlib.suppress(RuntimeError):
                node.house.upkeep.recover()

    def recorded_again(self, _node):
        """Return the images that may be recorded again as a node's process is another one."""
        return IMAGES

    def forget_work(self):
        """What was done before had its own reason."""
        self.looks.clear()
        self.steps.clear()

    def is_told(self, image):
        return any((image, node.name) in self.told for node in self.working())

    def tell(self, number, image, how, event):
        """Have a node take an event of Glance's; the bus gives it again until it is written."""
        for _time in range({'': 0, 'told': 1, 'told twice': 2}[how]):
            for again in range(20):
                node = self.node(number + again)
                if node is None:
                    return
                if event == 'image_changed':
                    self.told.add((image, node.name))
                with self.acting(node):
                    try:
                        getattr(node.house.controller, event)(image)
                        if event == 'image_deleted' and image not in self.glance.images \
                                and node.house.store.anywhere(image) is not None:
                            self.notified.add(image)
                        break
                    except DatabaseAway:
                        if again >= len(self.nodes) - 1:
                            self.pause()
                    except Killed:
                        self.die(node)

    def ask(self, number, message):
        """Have a node answer a message."""
        node = self.node(number)
        return node and self.move(node, self.do, node, message)

    def do(self, node, message):
        """Have the node do what a message says that answers it."""
        image, house = message.image_id, node.house
        match message:
            case BuildImage():
                with contextlib.suppress(RuntimeError):  # Glance's.
                    house.controller.build(image)
            case DeleteImage():
                house.controller.evict(image)
            case PlanBoot():
                before = house.store.load(image)
                answer = house.hosts.plan_boot(message)
                if answer['action'] in ('cold', 'cache'):
                    # Where an answer of the database's was lost, another record may be read
                    # meanwhile.
                    known = before, house.store.load(image)
                    assert answer['image_hash'] in {one.image_hash for one in known if one}
                    assert answer['image_hash'] in {one.made.base_hash for one in known if one}

    def put(self, *arguments, **named):
        self.changes += 1
        self.glance.put(*arguments, updated_at=datetime.datetime.fromtimestamp(
            self.changes, datetime.UTC).isoformat(), **named)

    def drop(self, image):
        del self.glance.images[image]

    # What happens.

    @stateful.rule(number=numbers, image=image_ids, content=contents, tells=tells,
                   visibility=st.sampled_from(['public', 'shared', 'private']))
    def register(self, number, image, content, tells, visibility):
        self.allowed[image] += 1
        self.notified.discard(image)
        if image not in self.glance.images:
            # Glance gives no id a second time; here it is another image.
            self.told = {(one, name) for one, name in self.told if one != image}
        self.put(image, CONTENTS[content], visibility=visibility)
        self.tell(number, image, tells, 'image_changed')

    @stateful.rule(number=numbers, image=image_ids, tells=tells, status=st.sampled_from(
        ['active', 'deactivated', 'importing']), mode=st.sampled_from(['auto', 'off']),
        quota=st.sampled_from(['1MiB', '2MiB']))
    def change(self, number, image, tells, status, mode, quota):
        if image in self.glance.images:
            self.allowed[image] += 1
            content, facts = self.glance.images[image]
            self.put(image, content, status, facts.visibility, mode=mode, quota=quota)
            self.tell(number, image, tells, 'image_changed')

    @stateful.rule(number=numbers, image=image_ids, tells=tells)
    def delete(self, number, image, tells):
        if image in self.glance.images:
            self.drop(image)
            self.allowed[image] += 1
            self.tell(number, image, tells, 'image_deleted')

    @stateful.rule(number=numbers, image=image_ids, event=st.sampled_from(
        ['image_changed', 'image_deleted', 'let_go']))
    def late(self, number, image, event):
        """An event of a while ago."""
        self.tell(number, image, 'told', event)

    @stateful.rule(number=numbers, image=image_ids)
    def build(self, number, image):
        self.allowed[image] += 1
        self.ask(number, BuildImage(image))

    @stateful.rule(number=numbers, image=image_ids)
    def evict(self, number, image):
        self.allowed[image] += 1
        if any((record := node.house.store.anywhere(image)) is not None and record.is_missing
               for node in self.nodes):
            # An operator who drops an image that Glance is said not to have is believed: it is
            # taken up again as a server boots.
            self.told = {told for told in self.told if told[0] != image}
        self.ask(number, DeleteImage(image))

    @stateful.rule(number=numbers, image=image_ids)
    def boot_server(self, number, image):
        self.asked_for.add(image)
        self.ask(number, PlanBoot(image, 'host', 'server'))

    @stateful.rule(number=numbers, image=image_ids)
    def leave_storage_disk(self, number, image):
        self.evicted.add(image)
        if node := self.node(number):
            self.move(node, node.house.disk_room.evict, image)

    @stateful.rule(image=image_ids, needs=st.booleans())
    def servers(self, image, needs):
        (self.nova.servers.add if needs else self.nova.servers.discard)(image)

    @stateful.rule(glance=st.booleans(), nova=st.booleans(), full=st.booleans(),
                   building=st.booleans(), database=st.booleans())
    def weather(self, glance, nova, full, building, database):
        self.glance.away, self.nova.away = glance, nova
        self.is_full, self.is_building_away = full, building
        self.is_database_away = database
        for image in IMAGES:
            self.allowed[image] += 1

    @stateful.rule(seconds=st.sampled_from([1, 40, 400, 4000]))
    def wait(self, seconds):
        self.pass_by(seconds)

    def pass_by(self, seconds):
        self.seconds.sleep(seconds)
        self.forget_work()

    @stateful.rule(number=numbers, steps=st.integers(0, 12))
    def kill_soon(self, number, steps):
        if node := self.node(number):
            node.kill_after = steps

    @stateful.rule()
    def lose_an_answer(self):
        self.is_answer_lost = True
        for image in IMAGES:
            self.allowed[image] += 1

    @stateful.rule()
    def be_overtaken(self):
        self.is_overtaken = True

    @stateful.rule(number=numbers, image=image_ids, content=contents, left=st.integers(0, 4),
                   what=st.sampled_from(['register', 'off', 'delete', 'evict', 'build', 'boot']))
    def in_midst_of_a_step(self, number, image, content, left, what):
        """Of any image's; the image is looked at, as other threads do."""
        def happens():
            self.forget_work()
            match what:
                case 'register':
                    self.register(number, image, content, 'told', 'shared')
                case 'off':
                    self.change(number, image, 'told', 'active', 'off', '1MiB')
                case 'delete':
                    self.delete(number, image, 'told')
                case 'evict':
                    self.evict(number, image)
                case 'build':
                    self.build(number, image)
                case 'boot':
                    self.boot_server(number, image)
            queue = self.at_work.house.controller.queue
            if image in queue.ready():
                self.move(self.at_work, queue.run, image)

        self.meanwhile = left, happens

    @stateful.rule(number=numbers, steps=st.booleans(), which=st.integers(0, 9))
    def work(self, number, steps, which):
        """A look, or a step."""
        node = self.node(number)
        if node is None:
            return
        if steps and node.pending:
            self.move(node, node.pending.pop(which % len(node.pending)))
        elif keys := node.house.controller.queue.ready():
            self.look(node, keys[which % len(keys)])

    @stateful.rule(number=numbers, moves=st.integers(1, 30))
    def work_on(self, number, moves):
        """Nothing else happens meanwhile: what fails is tried again when time has passed."""
        self.forget_work()
        for _move in range(moves):
            node = self.node(number)
            if node is None:
                return
            if node.pending:
                self.move(node, node.pending.pop(0))
            elif keys := node.house.controller.queue.ready():
                self.look(node, keys[0])
        self.check_at_rest()

    def look(self, node, image):
        self.looks[node.name, image] += 1
        self.move(node, node.house.controller.queue.run, image)

    def check_at_rest(self):
        # Another content's base is got, recorded and built of, and what fails waits.
        assert all(count <= _MOST_STEPS for count in self.steps.values()), self.steps
        assert all(count <= _MOST_LOOKS for count in self.looks.values()), self.looks

    # What has to be.

    @stateful.invariant()
    def is_sound(self):
        """At each moment, also in the midst of all that happens."""
        assert self.wrong == []
        for node in self.nodes:
            for record in node.house.store.manifests():
                if record.made.working_set is None and record.made.cache_image is None:
                    continue
                assert record.standing is not Standing.SKIPPED, \
                    'what was dropped does not come back'
                if record.made.working_set is not None and not (
                        self.is_database_away or node.is_cut or node.is_killed):
                    found = node.house.store.load_working_set(record)
                    assert found is None or found.image_hash == record.made.base_hash

    def calm(self):
        """Nothing happens any more but what the service does by itself."""
        self.meanwhile = None
        self.is_full = self.is_building_away = self.is_database_away = False
        self.is_answer_lost = self.is_overtaken = False
        self.glance.away = self.nova.away = False
        self.nova.servers.clear()
        for node in self.nodes:
            node.kill_after, node.is_cut = None, False

    def working(self):
        """Return the nodes that work."""
        return self.nodes

    def once(self, node):
        """What a node does by itself, now and then."""
        node.house.upkeep.once()

    def quiet(self):
        self.calm()
        # What happened before had steps of its own.
        self.forget_work()
        hours, idle_hours = 0, 0
        while hours < _QUIET_HOURS:
            before = self.writes
            for node in self.working():
                self.move(node, self.once, node)
            has_worked = self.become_quiet()
            idle_hours = 0 if has_worked or self.writes > before else idle_hours + 1
            if idle_hours < 3:
                pause = 1
            elif due := [when for node in self.working()
                         for when in node.house.controller.queue.due.values()]:
                # Nothing else comes before.
                pause = max(1, -(-(min(due) - self.seconds()) // _HOUR))
            else:
                break
            hours += pause
            self.pass_by(pause * _HOUR)

    def become_quiet(self):
        """Do all that is due; return whether there was anything."""
        for again in range(200):
            is_quiet = True
            for node in self.working():
                while node.pending:
                    is_quiet = False
                    self.move(node, node.pending.pop(0))
                for key in node.house.controller.queue.ready():
                    is_quiet = False
                    self.look(node, key)
            if is_quiet:
                return again > 0
            self.check_at_rest()
        raise AssertionError(f'it does not become quiet: {self.looks}')

    def teardown(self):
        try:
            self.quiet()
            for image in IMAGES:
                self.check(image)
            assert self.wrong == []
        finally:
            # What goes wrong above leaves steps that nobody does.
            for node in self.nodes:
                node.house.running._jobs.clear()
            self.stack.close()
            self.patch.undo()

    def home(self, _image):
        """Return the node that works on an image; any, if there is none."""
        return self.nodes[0]

    def check(self, image):
        node = self.home(image)
        house, record = node.house, node.house.store.load(image)
        found = self.glance.images.get(image)
        hypothesis.note(f'{image}: {found and found[1]} {record}')
        assert self.recordings[image] <= self.allowed[image], 'it is recorded once for each change'
        if record is None:
            assert found is None or not self.is_told(image) or found[1].status != 'active'
            assert self.working_sets(image) == set()
            for each in self.working():
                self.check_given_up(each, image, None)
            return
        assert ImageStore(f'{node.directory}/state', self.database, node.row.id
                          ).load(image) == record
        assert image not in self.pinned or record.wished.pinned is self.pinned[image]
        # Of an image that Glance says not to have it is built when it has it again.
        assert record.goal == '' or record.standing is Standing.WANTED or (
            record.goal is Goal.BUILD and record.is_missing and found is None), \
            'nothing is outstanding'
        served = house.exporter.serving.get(image, (None, None))
        self.check_files(node, image, self.named(node, record))
        if found is None:
            assert image not in self.notified, 'Glance has notified its deletion'
            assert record.wished.availability in (Availability.MISSING, Availability.DELETED)
            assert served[1] is None
            return
        _content, facts = found
        wanted = facts.status == 'active' and facts.properties.get('bootcache_mode') != 'off'
        if not wanted or record.wished.held:
            if facts.status == 'importing':
                return
            assert record.state is ImageState.SKIPPED, record
            assert not record.made.base_path
            assert served == (None, None)
            return
        # One that was got for a server is recorded as the next server boots.
        is_asked_for = image in (self.asked_for if record.made.working_set is None
                                 else self.evicted)
        assert record.state is ImageState.READY or (
            is_asked_for and record.state is ImageState.SERVED), record
        assert record.image_hash == record.made.base_hash == facts.image_hash
        assert not record.cause or record.cause.reason is Reason.FAILED
        # What nobody reads is served when it is asked for.
        assert served in ((None, None), (record.made.base_path, house.store.cache_path(record)))
        assert os.path.exists(record.made.base_path)
        if record.state is ImageState.READY:
            working_set = house.store.load_working_set(record)
            assert working_set is not None and working_set.image_hash == facts.image_hash

    def named(self, node, record):
        """Return the names of the files that a node has of an image on which it works."""
        return nodefiles.named(record, node.house.store.directory(record.image_id))

    def check_given_up(self, node, image, record):
        """Check what a node has of an image on which it does not work."""
        assert image not in node.house.exporter.serving, f'{node.name} serves {image}'
        self.check_files(node, image, set())

    def check_files(self, node, image, named):
        """Check that a node has the files of an image that its row names."""
        assert self.files(node, image) == dict.fromkeys(named, 'ready'), node.name
        assert self.on_disk(node, image) == named, node.name
