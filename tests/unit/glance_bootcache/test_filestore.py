"""Files that are put into Glance's file store, and what is tried of Glance and when."""

import os

import pytest
from glanceclient import exc

from glance_bootcache.filestore import placing
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.storage.nodefiles import FileKind
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Glance:
    """Stands for Glance, whose real one tests/functional asks: registers what one store has."""

    def __init__(self, directory, store=''):
        self.directory, self.store = directory, store
        self.names = ['other', 'file']
        self.made = []
        self.images = set()
        self.away = False

    def stores(self):
        if self.away:
            raise ConnectionError('away')
        return self.names

    def make(self, image_id):
        self.made.append(image_id)
        self.images.add(image_id)

    def register(self, image_id, url):
        assert os.path.getsize(f'{self.directory}/{image_id}') == 4096
        return '' if url == f'bootcache://{self.store}/{image_id}' else 'no'

    def content(self, image_id, most):
        with open(f'{self.directory}/{image_id}', 'rb') as stream:
            return stream.read(most)

    def delete(self, image_id):
        is_gone = image_id not in self.images
        self.images.discard(image_id)
        return is_gone

    def there(self):
        return sorted(self.images)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def glance(tmp_path):
    os.mkdir(tmp_path / 'images')
    return Glance(str(tmp_path / 'images'))


@pytest.fixture
def rows(storage_conf, database, now):
    """Of a service that was started just now."""
    def rows():
        rows = storedimages.opened(storage_conf, database).files
        rows._clock = lambda: now[0]
        rows.retire_left()
        return rows

    return rows


@pytest.fixture
def registrars(glance, rows, now):
    return Registrars([glance.directory], glance, rows(), clock=lambda: now[0])


def files(directory):
    return [name for _path, _folders, names in os.walk(directory) for name in names]


def test_a_directory_is_tried_again_after_growing_pauses(registrars, glance, now):
    asked = []
    for moment in (0, 59, 60, 179, 180):
        now[0] = moment
        registrars.look()
        asked.append(len(glance.made) // 2)
    assert asked == [1, 1, 2, 2, 3]
    glance.store = 'file'
    assert registrars.store_of(glance.directory) == ''
    now[0] = 1e6
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file' and files(glance.directory) == []
    # What is known is not tried.
    now[0] = 2e6
    registrars.look()
    assert len(glance.made) == 8


def test_it_is_tried_at_once_when_there_is_doubt_or_another_directory(registrars, glance):
    glance.store = 'other'
    registrars.look()
    assert registrars.store_of(glance.directory) == 'other'
    registrars.doubt(glance.directory)
    assert registrars.store_of(glance.directory) == ''
    glance.store = 'file'
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file'
    os.rename(glance.directory, f'{glance.directory}-older')
    assert registrars.store_of(glance.directory) == ''
    os.mkdir(glance.directory)
    assert registrars.store_of(glance.directory) == ''
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file'
    os.chmod(glance.directory, 0o711)
    assert registrars.store_of(glance.directory) == ''


def test_what_comes_of_a_trial_is_logged_when_it_changes(registrars, glance, caplog):
    caplog.set_level('INFO')
    for store in 'file', 'file', '', '', 'file', 'other':
        glance.store = store
        registrars.look()
        registrars.doubt(glance.directory)
    registers = '{}: Glance\'s store {} registers snapshots without copying them'.format
    file, nothing, again, other = [record.getMessage() for record in caplog.records]
    assert file == again == registers(glance.directory, 'file')
    assert 'no store of Glance registers snapshots' in nothing
    assert other == registers(glance.directory, 'other')


def test_a_glance_that_is_away_is_asked_again(registrars, glance, now):
    glance.away, glance.store = True, 'file'
    with pytest.raises(ConnectionError):
        registrars.look()
    glance.away = False
    now[0] = 60
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file'


def test_a_glance_that_is_at_work_on_a_trial_has_it_deleted_later(registrars, glance):
    """It answers 500 while it computes the hash of what was registered."""
    def refuse(image_id):
        raise exc.HTTPInternalServerError('cannot cancel')

    delete, glance.delete, glance.store, glance.names = glance.delete, refuse, 'file', ['file']
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file' and files(glance.directory) == []
    assert glance.images == set(glance.made)
    glance.delete = delete
    registrars.look()
    assert glance.images == set()


def test_each_trial_that_is_to_be_deleted_is_one_of_a_row(registrars, glance, rows, caplog, now):
    delete, glance.delete = glance.delete, lambda image_id: False
    registrars.look()
    assert len(glance.images) == 2
    glance.delete = delete
    Registrars([glance.directory], glance, rows(), clock=lambda: now[0]).look()
    assert glance.images == set() and 'of no row' not in caplog.text


def test_what_a_crash_left_of_a_trial_is_removed_and_nothing_else(registrars, glance, rows, caplog,
                                                                  now):
    class Killed(BaseException):
        """Nothing is done after it."""

    def kill(image_id, url):
        raise Killed

    registrars._end = lambda image_id: None
    register, glance.register = glance.register, kill
    with pytest.raises(Killed):
        registrars.look()
    glance.register = register
    # Of another service of the project, or of a database that was lost.
    for path in (glance.directory, placing.work_directory(glance.directory)):
        with open(f'{path}/{IMAGE}', 'w') as stream:
            stream.write('of a trial')
    glance.images.add(IMAGE)
    assert len(glance.images) == 2 and len(files(glance.directory)) == 3
    again = rows()
    for _start in range(2):
        Registrars([glance.directory], glance, again, clock=lambda: now[0]).look()
    assert glance.images == {IMAGE} and files(glance.directory) == [IMAGE, IMAGE]
    assert caplog.text.count('1 images bootcache-trial in Glance are of no row of the database,'
                             f' and are left, as {IMAGE};') == 2
    now[0] += 600
    Registrars([], glance, again, clock=lambda: now[0]).look()
    assert again.named(FileKind.TRIAL) == {}


def test_a_directory_that_is_not_there_is_not_tried(glance, rows, now):
    registrars = Registrars([f'{glance.directory}/absent'], glance, rows(), clock=lambda: now[0])
    registrars.look()
    assert registrars.store_of(f'{glance.directory}/absent') == '' and glance.made == []


def test_a_name_in_the_store_is_taken_once(tmp_path):
    for name, text in (('work', 'new'), ('there', 'older')):
        (tmp_path / name).write_text(text)
    with pytest.raises(FileExistsError):
        placing.place(str(tmp_path / 'work'), str(tmp_path / 'there'))
    assert (tmp_path / 'there').read_text() == 'older'
    file = placing.named(str(tmp_path / 'work'))
    placing.place(str(tmp_path / 'work'), str(tmp_path / 'image'))
    assert os.listdir(tmp_path) and not (tmp_path / 'work').exists()
    assert not placing.remove(str(tmp_path / 'there'), file)
    # Another file may have the inode by now: ext4 gives it away again at once.
    written = (tmp_path / 'image').stat().st_mtime_ns
    os.utime(tmp_path / 'image', ns=(written, written + 1))
    assert not placing.remove(str(tmp_path / 'image'), file)
    os.utime(tmp_path / 'image', ns=(written, written))
    assert placing.remove(str(tmp_path / 'image'), file)
    assert not placing.remove(str(tmp_path / 'image'), file)


def test_work_in_somebody_elses_directory_is_refused(tmp_path):
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / placing.WORK).symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(PermissionError):
        placing.work_directory(str(tmp_path))
