"""Bounds that the storage service does not have yet; each test goes where its code is then."""

import contextlib
import threading
import uuid

import pytest
from fakes_manager import SIZE

from bootcache.rpc.messages import PlanBoot
from glance_bootcache.images import imagework
from glance_bootcache.images.jobs import WaitingImage, next_turn

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
to_come = pytest.mark.xfail(strict=True,
                            reason='The storage service on a database, as a controller')


@to_come
def test_images_that_somebody_makes_up_are_not_all_looked_at_before_others(house, monkeypatch):
    """plan_boot in names of hosts that are made up as well, as the limits of senders let pass."""
    asked, may_answer = [], threading.Event()
    get = house.images.get

    def slow(image_id):
        may_answer.wait()
        asked.append(image_id)
        return get(image_id)

    monkeypatch.setattr(house.images, 'get', slow)
    house.images.put(IMAGE)
    try:
        for number in range(2000):
            house.hosts.plan_boot(PlanBoot(str(uuid.uuid4()), f'x{number}', 'server'))
        house.hosts.plan_boot(PlanBoot(IMAGE, 'honest', 'server'))
    finally:
        may_answer.set()
        house.settle()
    assert asked.index(IMAGE) <= 200


def test_images_that_somebody_makes_up_do_not_fill_the_state_directory(house):
    house.images.away = True
    for _number in range(1100):
        with contextlib.suppress(RuntimeError):  # What is raised is logged, and the cast is over.
            house.changed(str(uuid.uuid4()))
    house.settle()
    assert len(list(house.store.manifests())) <= 1000


@to_come
def test_two_projects_with_huge_images_leave_a_turn_to_a_third():
    waiting = WaitingImage(IMAGE, 'third', 9)
    assert next_turn([waiting], {'one': 2, 'two': 1}, {}, 3) == waiting


@to_come
def test_a_file_store_that_hangs_stops_no_image_of_another(house, monkeypatch, tmp_path):
    stores = tmp_path / 'hangs', tmp_path / 'answers'
    house.conf.set_override('glance_store_dirs', list(map(str, stores)), 'bootcache')
    house.restart()
    digest, goes_on, reached = imagework.savefile.file_digest, threading.Event(), threading.Event()

    def read(path, *arguments):
        manifest = next(image for image in images if image in path)
        if manifest != IMAGE:
            goes_on.wait()
        else:
            reached.set()
        return digest(path, *arguments)

    images = [str(uuid.uuid4()) for _number in range(40)]
    for store, those in zip(stores, (images, [IMAGE]), strict=True):
        store.mkdir()
        for image in those:
            (store / image).write_bytes(bytes(SIZE))
            house.images.put(image, owner=f'of-{image}')
    images.append(IMAGE)
    monkeypatch.setattr(imagework.savefile, 'file_digest', read)
    try:
        for image in images:
            house.changed(image)
        # The others never end.
        assert reached.wait(3)
    finally:
        goes_on.set()
        house.settle()
