"""Files that are put into Glance's file store, and what is tried of Glance and when."""

import os

import pytest
from glanceclient import exc

from glance_bootcache.filestore import placing
from glance_bootcache.filestore.registrars import Registrars

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class Glance:
    """Stands for Glance, whose real one tests/functional asks: registers what one store has."""

    def __init__(self, directory, store=''):
        self.directory, self.store = directory, store
        self.names = ['other', 'file']
        self.made = []
        self.away = False
        self.crashed = []

    def stores(self):
        if self.away:
            raise ConnectionError('away')
        return self.names

    def make(self):
        image_id = f'7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d{len(self.made):04x}'
        self.made.append(image_id)
        return image_id

    def register(self, image_id, url):
        assert os.path.getsize(f'{self.directory}/{image_id}') == 4096
        return '' if url == f'bootcache://{self.store}/{image_id}' else 'no'

    def content(self, image_id, most):
        with open(f'{self.directory}/{image_id}', 'rb') as stream:
            return stream.read(most)

    def delete(self, image_id):
        if image_id in self.crashed:
            self.crashed.remove(image_id)

    def left(self):
        return list(self.crashed)


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def glance(tmp_path):
    return Glance(str(tmp_path))


@pytest.fixture
def registrars(glance, now):
    return Registrars([glance.directory], glance, clock=lambda: now[0])


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
        glance.crashed.append(image_id)
        raise exc.HTTPInternalServerError('cannot cancel')

    delete, glance.delete, glance.store, glance.names = glance.delete, refuse, 'file', ['file']
    registrars.look()
    assert registrars.store_of(glance.directory) == 'file' and files(glance.directory) == []
    glance.delete = delete
    registrars.look()
    assert glance.crashed == []


def test_what_a_crash_left_of_a_trial_is_removed_first(registrars, glance):
    for path in (glance.directory, placing.work_directory(glance.directory)):
        with open(f'{path}/{IMAGE}', 'w') as stream:
            stream.write('of a trial')
    glance.crashed = [IMAGE]
    registrars.look()
    assert glance.crashed == [] and files(glance.directory) == []


def test_a_directory_that_is_not_there_is_not_tried(glance, now):
    registrars = Registrars([f'{glance.directory}/absent'], glance, clock=lambda: now[0])
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
