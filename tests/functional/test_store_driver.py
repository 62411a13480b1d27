"""The store driver in a real Glance: what is put into its directory becomes an image as it is."""

import contextlib
import io
import os
import shutil
import sqlite3
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest
from functional_tools import until
from glanceclient import exc
from real_glance import ADMIN, MEMBER, Glance
from reflinks import used, xfs

from glance_bootcache.filestore.locations import location_of

PAGE = Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'filestore.rst'
MIB = 1 << 20
CONTENT = b'any bytes' * 50_000


@pytest.fixture(scope='module')
def home():
    """A directory, for Glance's own files."""
    directory = tempfile.mkdtemp(prefix='bc', dir='/tmp')
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope='module')
def place(home):
    """A file system with reflinks, for images."""
    with xfs(home) as found:
        yield found


@pytest.fixture(scope='module')
def glance(home, place):
    """A Glance whose one store is ours."""
    made = Glance(home, f'{place}/images')
    try:
        yield made.start()
    finally:
        made.stop()


def put(glance, image_id, content=CONTENT):
    """Put a file into the store as the storage service does."""
    with open(glance.file(image_id), 'wb') as stream:
        stream.write(content)


def test_a_reflink_becomes_an_image_without_being_copied(glance, place):
    base = glance.upload(os.urandom(40 * MIB))
    snapshot = glance.image(name='snapshot')
    before = used(place)
    subprocess.run(['cp', '--reflink=always', glance.file(base), glance.file(snapshot)], check=True)
    with open(glance.file(snapshot), 'r+b') as stream:
        stream.seek(7 * MIB)
        stream.write(os.urandom(MIB))
    with open(glance.file(snapshot), 'rb') as stream:
        content = stream.read()
    glance.add_location(snapshot, location_of('file', snapshot))
    glance.wait(snapshot)
    shown = glance.client().images.get(snapshot)
    assert (shown['size'], shown['stores']) == (40 * MIB, 'file')
    assert MIB <= used(place) - before < 4 * MIB
    assert glance.content(snapshot) == content != glance.content(base)
    # The parent goes, and the child stays right.
    glance.client().images.delete(base)
    assert not os.path.exists(glance.file(base))
    assert glance.content(snapshot) == content
    glance.client().images.delete(snapshot)
    assert not os.path.exists(glance.file(snapshot))


def test_an_upload_is_stored_as_before_and_its_location_has_no_path(glance):
    image = glance.upload(CONTENT)
    assert glance.locations(image) == [f'bootcache://file/{image}']
    assert glance.content(image) == CONTENT
    # A part of it.
    request = urllib.request.Request(f'{glance.url}/v2/images/{image}/file', headers={
        'Range': 'bytes=100-4099', 'X-Auth-Token': MEMBER})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 206 and answer.read() == CONTENT[100:4100]
    with pytest.raises(exc.HTTPConflict):
        glance.client().images.upload(image, io.BytesIO(b'again'))
    glance.client().images.delete(image)
    assert not os.path.exists(glance.file(image))


def test_an_import_goes_into_the_store(glance):
    image = glance.image()
    client = glance.client().images
    client.stage(image, io.BytesIO(CONTENT))
    client.image_import(image, 'glance-direct')
    glance.wait(image)
    assert glance.content(image) == CONTENT
    assert glance.locations(image)[0] == f'bootcache://file/{image}'
    client.delete(image)


def test_only_services_register_what_is_there(glance):
    image = glance.image()
    put(glance, image)
    with pytest.raises(exc.HTTPForbidden):
        glance.add_location(image, location_of('file', image), MEMBER)
    glance.add_location(image, location_of('file', image))
    glance.wait(image)
    glance.client().images.delete(image)


@pytest.mark.parametrize('url', [
    'bootcache://file/../{id}', 'bootcache://file/{id}/../{id}', 'bootcache://file//{id}',
    'bootcache://other/{id}', 'bootcache:///{id}', 'bootcache://{id}', 'bootcache://file/{id}\n',
    'bootcache://file/{id}?a=b', 'bootcache://file/{id}.x', 'bootcache://file/%2e%2e',
    'bootcache://file/..', 'file://{path}', 'filesystem://{path}', 'bootcache://{path}'])
def test_no_other_location_is_taken(glance, url):
    image = glance.image()
    put(glance, image)
    try:
        glance.add_location(image, url.format(id=image, path=glance.file(image)))
        glance.task_ended(image)
    except exc.HTTPBadRequest:
        pass
    assert glance.status(image) == 'queued'
    # What it did not take it did not remove either.
    os.unlink(glance.file(image))
    glance.client().images.delete(image)


def a_symbolic_link(path, place):
    os.symlink(f'{place}/other', path)


def a_second_name(path, place):
    os.link(f'{place}/other', path)


def a_pipe(path, _place):
    os.mkfifo(path)


def a_device(path, _place):
    os.mknod(path, 0o20666, os.makedev(1, 5))


def a_directory(path, _place):
    os.mkdir(path)


def an_empty_file(path, _place):
    open(path, 'w').close()


def nothing(_path, _place):
    """No file at all."""


@pytest.mark.parametrize('make', [a_symbolic_link, a_second_name, a_pipe, a_device, a_directory,
                                  an_empty_file, nothing])
def test_only_a_plain_file_with_one_name_is_registered(glance, place, make):
    with open(f'{place}/other', 'wb') as stream:
        stream.write(b'of somebody else')
    image = glance.image()
    path = glance.file(image)
    make(path, place)
    glance.add_location(image, location_of('file', image))
    glance.task_ended(image)
    assert glance.status(image) == 'queued'
    glance.client().images.delete(image)
    if os.path.lexists(path):
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)


def test_what_takes_an_images_name_later_is_not_given_out(glance, place):
    image = glance.upload(CONTENT)
    with open(f'{place}/other', 'wb') as stream:
        stream.write(b'of somebody else')
    os.unlink(glance.file(image))
    os.symlink(f'{place}/other', glance.file(image))
    assert glance.content(image) == b''
    # The link goes, and not what it leads to.
    glance.client().images.delete(image)
    assert not os.path.lexists(glance.file(image)) and os.path.exists(f'{place}/other')


def test_a_base_that_the_storage_service_has_linked_is_read_on(glance, place):
    image = glance.upload(CONTENT)
    os.link(glance.file(image), f'{place}/base')
    assert glance.content(image) == CONTENT
    glance.client().images.delete(image)
    assert os.path.exists(f'{place}/base')
    os.unlink(f'{place}/base')


def statement(glance):
    """Return what the page has whoever takes the driver out give to the database."""
    text = PAGE.read_text().partition('code-block:: sql')[2]
    found = text[:text.index(';') + 1]
    assert found.count('/var/lib/glance/images/') == 1
    return found.replace('/var/lib/glance/images', glance.images)


def change(glance, text):
    """Have a statement carried out in Glance's database."""
    with contextlib.closing(sqlite3.connect(glance.database)) as database, database:
        assert database.execute(text).rowcount == 1


def test_a_store_becomes_ours_and_the_stock_one_again(home, place):
    glance = Glance(f'{home}/second', f'{place}/second/images', 'file:file')
    try:
        glance.start()
        old, gone = (glance.upload(CONTENT) for _ in range(2))
        assert glance.locations(old)[0] == f'file://{glance.file(old)}'
        glance.stop()
        glance.start('file:bootcache')
        assert glance.content(old) == CONTENT
        glance.client().images.delete(gone)
        assert not os.path.exists(glance.file(gone))
        new = glance.upload(CONTENT)
        glance.stop()
        change(glance, statement(glance))
        glance.start('file:file')
        assert [glance.content(image) for image in (old, new)] == [CONTENT, CONTENT]
        glance.client().images.delete(new)
        assert not os.path.exists(glance.file(new))
    finally:
        glance.stop()


def test_a_directory_of_another_store_is_not_ours(home, place):
    glance = Glance(f'{home}/third', f'{place}/third/images', 'file:file')
    try:
        image = glance.start().upload(CONTENT)
        glance.stop()
        change(glance, "UPDATE image_locations SET value = REPLACE(value, '/third/images/',"
                       " '/third/elsewhere/')")
        os.rename(glance.images, f'{place}/third/elsewhere')
        glance.start('file:bootcache')
        assert glance.content(image) == b''
    finally:
        glance.stop()


def test_of_several_stores_each_has_its_own_images(home, place):
    images = f'{place}/fourth/images'
    glance = Glance(f'{home}/fourth', images, 'file:bootcache,file2:bootcache',
                    file2={'filesystem_store_datadir': f'{place}/fourth/images2'})
    try:
        glance.start()
        # Whose name begins with the other's.
        image = glance.image()
        with open(f'{place}/fourth/images2/{image}', 'wb') as stream:
            stream.write(CONTENT)
        glance.add_location(image, location_of('file2', image))
        glance.wait(image)
        assert glance.client().images.get(image)['stores'] == 'file2'
        assert glance.content(image) == CONTENT
        client = glance.client(ADMIN).images
        glance.task_ended(image)
        client.image_import(image, 'copy-image', stores=['file'])
        until(lambda: set(client.get(image)['stores'].split(',')) == {'file', 'file2'}, 'the copy')
        assert os.path.exists(f'{images}/{image}')
        glance.task_ended(image)
        client.delete_from_store('file2', image)
        assert glance.content(image) == CONTENT
        assert os.listdir(f'{place}/fourth/images2') == []
    finally:
        glance.stop()
