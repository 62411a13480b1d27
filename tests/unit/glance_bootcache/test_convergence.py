"""Whatever happens to images, in which order and however often, all is well when it is quiet again.

Glance, Nova and the exporter are stand-ins (fakes_manager.py): they are away, full, late or silent
as the machine says. The database is SQLite; it is away, its answer to a commit is lost, another
process writes before this one does, as the machine says. There are no threads: each look and each
step is a move.
"""

import collections
import contextlib
import datetime
import os
import tempfile

import hypothesis
import pytest
import sqlalchemy as sa
from conftest import made_house, without_qemu
from fakes_manager import SIZE
from hypothesis import stateful
from hypothesis import strategies as st
from oslo_config import cfg
from sqlalchemy import event

from bootcache import locks, savefile, steps
from bootcache.exception import DatabaseAway, ServiceAway
from bootcache.manifest import Availability, Goal, ImageState, Standing
from bootcache.reasons import Reason
from bootcache.rpc.messages import PlanBoot
from glance_bootcache import conf as glance_conf
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from glance_bootcache.db.models import FileRow, ImageRow, WorkingSetRow
from glance_bootcache.images import controller, imagework, turns
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage import nodefiles
from glance_bootcache.storage.store import ImageStore

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(4)]
CONTENTS = [bytes([number]) * SIZE for number in range(3)]
# Others each time if somebody says how many; the same else.
RUNS = int(os.environ.get('BOOTCACHE_CONVERGENCE_RUNS', '0'))
# To make a failing run short takes minutes, and is asked for.
PHASES = tuple(hypothesis.Phase) if 'BOOTCACHE_CONVERGENCE_SHRINKS' in os.environ \
    else (hypothesis.Phase.explicit, hypothesis.Phase.generate)
_HOUR = 3600.0
# Of an image before it is at rest.
_MOST_STEPS = 5
_MOST_LOOKS = 20


class Killed(BaseException):
    """The process ends here."""


class Queue:
    """As WorkQueue; a key is worked on when the machine says so."""

    def __init__(self, work, workers, name, failed, clock):
        self.work, self.failed, self.clock = work, failed, clock
        self.due = {}

    def start(self):
        """As WorkQueue.start."""

    def stop(self, wait=True):
        """As WorkQueue.stop."""
        self.due = {}

    def wake(self):
        """As WorkQueue.wake."""

    def add(self, key, after=0.0):
        """As WorkQueue.add."""
        due = self.clock() + after
        self.due[key] = min(due, self.due.get(key, due))

    def keys(self):
        """Return the keys that are due."""
        return sorted(key for key, due in self.due.items() if due <= self.clock())

    def is_idle(self):
        """As WorkQueue.is_idle, where nobody waits for it."""
        return True

    def run(self, key):
        """Work on a key."""
        del self.due[key]
        try:
            self.work(key)
        except Exception as error:
            self.failed(key, error)
            self.add(key, 5)


class Executor:
    """As futurist's; what is submitted is done when the machine says so."""

    pending = []

    def __init__(self, max_workers):
        pass

    def submit(self, call, *arguments):
        """As futurist's."""
        self.pending.append(lambda: call(*arguments))

    def shutdown(self, wait=True):
        """As futurist's."""


image_ids = st.sampled_from(IMAGES)
contents = st.integers(0, len(CONTENTS) - 1)
tells = st.sampled_from(['', 'told', 'told', 'told twice'])


class Images(stateful.RuleBasedStateMachine):
    """Images of a cloud."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.stack = contextlib.ExitStack()
        self.directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        Executor.pending = []
        self.patch.setattr(controller, 'WorkQueue', Queue)
        self.patch.setattr(turns.futurist, 'ThreadPoolExecutor', Executor)
        self.patch.setattr(steps, 'reached', self.reached)
        self.unlink = os.unlink
        self.patch.setattr(os, 'unlink', self.remove)
        self.patch.setattr(savefile, 'commit', self.commit)
        conf = cfg.ConfigOpts()
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        glance_conf.register_opts(conf)
        db_conf.register_opts(conf)
        conf.set_override('state_dir', f'{self.directory}/state', 'bootcache')
        conf.set_override('run_dir', f'{self.directory}/run', 'bootcache')
        conf.set_override('changes_per_hour', 0, 'bootcache')
        os.makedirs(f'{self.directory}/state')
        self.database = Database(conf)
        event.listen(self.database._engine, 'connect',
                     lambda connection, _record: connection.execute('PRAGMA synchronous = OFF'))
        schema.sync(self.database)
        self.stack.callback(self.database.close)
        self.read, self.write = self.database.read, self.database.write
        self.is_full = self.is_killed = self.is_building_away = self.is_database_away = False
        self.is_answer_lost = self.is_overtaken = False
        self.kill_after = None
        # What another process has written into images' rows.
        self.pinned = {}
        self.qemu = without_qemu(self.patch)
        self.qemu.building = self.building
        self.house = self.stack.enter_context(made_house(conf, self.qemu, self.database))
        self.house.deletions._delay = 300
        self.patch.setattr(self.database, 'read', self.read_rows)
        self.patch.setattr(self.database, 'write', self.write_rows)
        # What Glance has told of, and how often each image may have been recorded.
        self.notified, self.told, self.asked_for = set(), set(), set()
        # Images whose cache image left storage disk: the next server's boot has it built again.
        self.evicted = set()
        self.changes = 0
        # What comes in the midst of a step, when it has come so far.
        self.meanwhile, self.is_in_step = None, False
        self.recordings, self.allowed = collections.Counter(), collections.Counter()
        # What was done for each image since anything has happened, or time has passed.
        self.looks, self.steps = collections.Counter(), collections.Counter()
        do = imagework.ImageWork.do

        def counted(work, job, facts):
            self.steps[job.image_id] += 1
            self.is_in_step = True
            try:
                return do(work, job, facts)
            finally:
                self.is_in_step = False

        self.patch.setattr(imagework.ImageWork, 'do', counted)
        self.patch.setattr(ImageJob, 'pause', lambda _job, _seconds: self.pause())
        self.run_boot = self.house.boots.run
        self.house.boots.run = self.boot

    # The world.

    def reached(self, name):
        if self.meanwhile and self.is_in_step and not locks.held():
            left, happens = self.meanwhile
            self.meanwhile = (left - 1, happens) if left else None
            if not left and self.kill_after is None:
                happens()
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                self.is_killed = True
                raise Killed(name)

    def remove(self, path, **named):
        if self.is_killed:
            return
        directory, name = os.path.split(path)
        image = os.path.basename(directory)
        if image in IMAGES and os.path.exists(path):
            is_partial = name.endswith('.partial')
            state = self.files(image).get(name.removesuffix('.partial'))
            assert state == 'retiring' or (state == 'making' and is_partial), (path, state)
        self.unlink(path, **named)

    def pause(self):
        """A step waits for the database, to write what it has made."""
        self.is_database_away = False

    def commit(self, partial, target):
        if self.is_killed:
            raise Killed(target)
        if self.is_full:
            raise OSError(28, 'No space left on device')
        os.rename(partial, target)

    def read_rows(self, query):
        if self.is_killed:
            raise Killed('a read')
        if self.is_database_away:
            raise DatabaseAway('it is away')
        return self.read(query)

    def write_rows(self, change):
        if self.is_killed:
            raise Killed('a write')
        if self.is_database_away:
            raise DatabaseAway('it is away')
        self.overtake()
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

    def files(self, image):
        """The states of an image's files, as rows have them."""
        return {row.name: row.state for row in self.read(lambda connection: connection.execute(
            sa.select(FileRow).where(FileRow.image_id == image)).all())}

    def working_sets(self, image):
        """The working sets of an image that are rows."""
        return self.read(lambda connection: set(connection.execute(sa.select(
            WorkingSetRow.sha256).where(WorkingSetRow.image_id == image)).scalars()))

    def building(self):
        if self.is_building_away:
            raise OSError(28, 'No space left on device')

    def boot(self, image, virtual_bytes, policy, job):
        if self.house.boots.away:
            raise ServiceAway('Nova is away')
        self.recordings[image.image_id] += 1
        return self.run_boot(image, virtual_bytes, policy, job)

    def move(self, call, *arguments):
        """Do something, which the process may not survive."""
        try:
            return call(*arguments)
        except Killed:
            self.restart()
        except (OSError, DatabaseAway):
            pass  # Who has asked is told, and asks again; an event stays on the bus.
        return None

    def restart(self):
        self.is_killed, self.kill_after = False, None
        # A service that starts waits for it.
        self.is_database_away = self.is_answer_lost = self.is_overtaken = False
        self.looks.clear()
        self.steps.clear()
        Executor.pending.clear()
        self.house.running._jobs.clear()
        for image in IMAGES:
            self.allowed[image] += 1
        node = self.house.store._node_id
        self.house.store = self.house.tiers.store = ImageStore(
            f'{self.directory}/state', self.database, node)
        self.house.store.retire_left()
        # What was heard of, and not looked at, a crash forgets.
        self.told -= {image for image in self.told if self.house.store.load(image) is None}
        self.house.restart()
        self.house.deletions._delay = 300
        with contextlib.suppress(RuntimeError):
            self.house.upkeep.recover()

    def tell(self, image, how, call):
        for _time in range({'': 0, 'told': 1, 'told twice': 2}[how]):
            if call.__name__ == 'image_changed':
                self.told.add(image)
            for _again in range(20):
                try:
                    call(image)
                    break
                except DatabaseAway:
                    self.is_database_away = False  # The bus gives it again until it is written.
                except Killed:
                    self.restart()

    def put(self, *arguments, **named):
        self.changes += 1
        self.house.images.put(*arguments, updated_at=datetime.datetime.fromtimestamp(
            self.changes, datetime.UTC).isoformat(), **named)

    # What happens.

    @stateful.rule(image=image_ids, content=contents, tells=tells,
                   visibility=st.sampled_from(['public', 'shared', 'private']))
    def register(self, image, content, tells, visibility):
        self.allowed[image] += 1
        self.notified.discard(image)
        if image not in self.house.images.images:
            # Glance gives no id a second time; here it is another image.
            self.told.discard(image)
        self.put(image, CONTENTS[content], visibility=visibility)
        self.tell(image, tells, self.house.controller.image_changed)

    @stateful.rule(image=image_ids, tells=tells, status=st.sampled_from(
        ['active', 'deactivated', 'importing']), mode=st.sampled_from(['auto', 'off']),
        quota=st.sampled_from(['1MiB', '2MiB']))
    def change(self, image, tells, status, mode, quota):
        if image in self.house.images.images:
            self.allowed[image] += 1
            content, facts = self.house.images.images[image]
            self.put(image, content, status, facts.visibility, mode=mode, quota=quota)
            self.tell(image, tells, self.house.controller.image_changed)

    @stateful.rule(image=image_ids, tells=tells)
    def delete(self, image, tells):
        if self.house.images.images.pop(image, None) is not None:
            self.allowed[image] += 1
            if tells and self.house.store.load(image) is not None:
                self.notified.add(image)
            self.tell(image, tells, self.house.controller.image_deleted)

    @stateful.rule(image=image_ids, event=st.sampled_from(
        ['image_changed', 'image_deleted', 'let_go']))
    def late(self, image, event):
        """An event of a while ago."""
        self.tell(image, 'told', getattr(self.house.controller, event))

    @stateful.rule(image=image_ids)
    def build(self, image):
        self.allowed[image] += 1
        with contextlib.suppress(RuntimeError):
            self.move(self.house.controller.build, image)

    @stateful.rule(image=image_ids)
    def evict(self, image):
        self.allowed[image] += 1
        self.move(self.house.controller.evict, image)

    @stateful.rule(image=image_ids)
    def boot_server(self, image):
        self.asked_for.add(image)
        before = self.house.store.load(image)
        answer = self.move(self.house.hosts.plan_boot, PlanBoot(image, 'host', 'server'))
        if answer is not None and answer['action'] in ('cold', 'cache'):
            # Where an answer of the database's was lost, another record may be read meanwhile.
            known = before, self.house.store.load(image)
            assert answer['image_hash'] in {one.image_hash for one in known}
            assert answer['image_hash'] in {one.made.base_hash for one in known}

    @stateful.rule(image=image_ids)
    def leave_storage_disk(self, image):
        self.evicted.add(image)
        self.move(self.house.disk_room.evict, image)

    @stateful.rule(image=image_ids, needs=st.booleans())
    def servers(self, image, needs):
        (self.house.boots.servers.add if needs else self.house.boots.servers.discard)(image)

    @stateful.rule(glance=st.booleans(), nova=st.booleans(), full=st.booleans(),
                   building=st.booleans(), database=st.booleans())
    def weather(self, glance, nova, full, building, database):
        self.house.images.away, self.house.boots.away = glance, nova
        self.is_full, self.is_building_away = full, building
        self.is_database_away = database
        for image in IMAGES:
            self.allowed[image] += 1

    @stateful.rule(seconds=st.sampled_from([1, 40, 400, 4000]))
    def wait(self, seconds):
        self.pass_by(seconds)

    def pass_by(self, seconds):
        self.house.seconds.sleep(seconds)
        self.looks.clear()
        self.steps.clear()

    @stateful.rule(steps=st.integers(0, 12))
    def kill_soon(self, steps):
        self.kill_after = steps

    @stateful.rule()
    def lose_an_answer(self):
        self.is_answer_lost = True
        for image in IMAGES:
            self.allowed[image] += 1

    @stateful.rule()
    def be_overtaken(self):
        self.is_overtaken = True

    @stateful.rule(image=image_ids, content=contents, left=st.integers(0, 4),
                   what=st.sampled_from(['register', 'off', 'delete', 'evict', 'build', 'boot']))
    def in_midst_of_a_step(self, image, content, left, what):
        """Of any image's; the image is looked at, as other threads do."""
        def happens():
            self.looks.clear()
            self.steps.clear()
            match what:
                case 'register':
                    self.register(image, content, 'told', 'shared')
                case 'off':
                    self.change(image, 'told', 'active', 'off', '1MiB')
                case 'delete':
                    self.delete(image, 'told')
                case 'evict':
                    self.evict(image)
                case 'build':
                    self.build(image)
                case 'boot':
                    self.boot_server(image)
            due = self.house.controller.queue.keys()
            if image in due:
                self.move(self.house.controller.queue.run, image)

        self.meanwhile = left, happens

    @stateful.rule(steps=st.booleans(), which=st.integers(0, 9))
    def work(self, steps, which):
        """A look, or a step."""
        if steps and Executor.pending:
            self.move(Executor.pending.pop(which % len(Executor.pending)))
        elif keys := self.house.controller.queue.keys():
            self.look(keys[which % len(keys)])

    @stateful.rule(moves=st.integers(1, 30))
    def work_on(self, moves):
        """Nothing else happens meanwhile: what fails is tried again when time has passed."""
        self.looks.clear()
        self.steps.clear()
        for _move in range(moves):
            if Executor.pending:
                self.move(Executor.pending.pop(0))
            elif keys := self.house.controller.queue.keys():
                self.look(keys[0])
        self.check_at_rest()

    def look(self, image):
        self.looks[image] += 1
        self.move(self.house.controller.queue.run, image)

    def check_at_rest(self):
        for image in IMAGES:
            # Another content's base is got, recorded and built of, and what fails waits.
            assert self.steps[image] <= _MOST_STEPS, f'{self.steps[image]} steps of {image}'
            assert self.looks[image] <= _MOST_LOOKS, f'{self.looks[image]} looks at {image}'

    # What has to be.

    @stateful.invariant()
    def is_sound(self):
        """At each moment, also in the midst of all that happens."""
        for image in IMAGES:
            record = self.house.store.load(image)
            if record is None or (record.made.working_set is None
                                  and record.made.cache_image is None):
                continue
            assert record.standing is not Standing.SKIPPED, 'what was dropped does not come back'
            if record.made.working_set is not None and not self.is_database_away:
                found = self.house.store.load_working_set(record)
                assert found is None or found.image_hash == record.made.base_hash

    def quiet(self):
        """Nothing happens any more but what the service does by itself."""
        self.meanwhile = None
        self.kill_after = None
        self.is_full = self.is_building_away = self.is_database_away = False
        self.is_answer_lost = self.is_overtaken = False
        self.house.images.away = self.house.boots.away = False
        self.house.boots.servers.clear()
        # What happened before had steps of its own.
        self.looks.clear()
        self.steps.clear()
        for _hour in range(30):
            self.house.upkeep.once()
            for _round in range(200):
                while Executor.pending:
                    Executor.pending.pop(0)()
                keys = self.house.controller.queue.keys()
                if not keys:
                    break
                for key in keys:
                    self.look(key)
                self.check_at_rest()
            else:
                raise AssertionError(f'it does not become quiet: {keys}')
            self.pass_by(_HOUR)

    def teardown(self):
        try:
            self.quiet()
            for image in IMAGES:
                self.check(image)
        finally:
            # What goes wrong above leaves steps that nobody does.
            self.house.running._jobs.clear()
            self.stack.close()
            self.patch.undo()

    def check(self, image):
        house, record = self.house, self.house.store.load(image)
        found = house.images.images.get(image)
        hypothesis.note(f'{image}: {found and found[1]} {record}')
        assert self.recordings[image] <= self.allowed[image], 'it is recorded once for each change'
        if record is None:
            assert found is None or image not in self.told or found[1].status != 'active'
            assert image not in house.exporter.serving
            directory = house.store.directory(image)
            assert self.files(image) == {} and self.working_sets(image) == set()
            assert not os.path.exists(directory) or os.listdir(directory) == []
            return
        assert ImageStore(f'{self.directory}/state', self.database, 1).load(image) == record
        assert image not in self.pinned or record.wished.pinned is self.pinned[image]
        # Of an image that Glance says not to have it is built when it has it again.
        assert record.goal == '' or record.standing is Standing.WANTED or (
            record.goal is Goal.BUILD and record.is_missing and found is None), \
            'nothing is outstanding'
        served = house.exporter.serving.get(image, (None, None))
        directory = house.store.directory(image)
        named = nodefiles.named(record, directory)
        assert self.files(image) == dict.fromkeys(named, 'ready')
        assert set(os.listdir(directory) if os.path.exists(directory) else ()) == named
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
            assert served == (None, None) and not record.made.base_path
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


Images.TestCase.settings = hypothesis.settings(
    max_examples=RUNS or 500, derandomize=not RUNS, stateful_step_count=40,
    report_multiple_bugs=False, phases=PHASES, deadline=None, database=None,
    suppress_health_check=list(hypothesis.HealthCheck))


@pytest.mark.usefixtures('no_daemons')
class TestImages(Images.TestCase):
    """Runs the machine."""
