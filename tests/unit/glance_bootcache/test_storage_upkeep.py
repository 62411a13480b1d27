"""What the storage service does by itself: each step whatever became of the others."""

import dataclasses
import logging
import threading

import pytest
from fakes_manager import until
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import exception
from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.rpc.report import HostReport
from glance_bootcache.smallca import SmallCA
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


# Steps.

STEPS = ['keep_serving', 'recover', 'recompress', 'sweep']


@pytest.mark.parametrize('broken', STEPS)
def test_a_step_that_fails_keeps_no_other_from_being_done(house, monkeypatch, caplog, broken):
    done = []
    for name in STEPS:
        def step(*_manifests, name=name):
            done.append(name)
            if name == broken:
                raise RuntimeError(f'{name} is out of order')
        monkeypatch.setattr(house.upkeep, name, step)
    monkeypatch.setattr(house.tiers, 'forget_gone', lambda manifests: done.append('forget_gone'))
    with caplog.at_level(logging.WARNING):
        house.once()
    assert done == ['keep_serving', 'recover', 'forget_gone', 'recompress', 'sweep']
    assert [record.getMessage() for record in caplog.records] == [
        record.getMessage() for record in caplog.records
        if f'{broken} is out of order; it is tried again in 30 s' in record.getMessage()] != []


def test_an_exporter_that_hangs_is_told_of_once_and_its_end(house, monkeypatch, caplog):
    """Not each round, and not for each image that it serves."""
    images = [f'{number:08x}{IMAGE[8:]}' for number in range(20)]
    for image in images:
        house.images.put(image)
        house.changed(image)
        house.settle()
        house.needs.note('compute-1', HostReport(needs=frozenset(images)))
    caplog.set_level(logging.INFO)
    caplog.clear()
    with monkeypatch.context() as patch:
        for name in 'start', 'ensure', 'withdraw_idle', 'end_unused':
            def hangs(*_arguments, **_named):
                raise exception.StorageDaemonBusy('exporter: it did not answer just now')
            patch.setattr(house.exporter, name, hangs)
        for _round in range(12):
            house.once()
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 1 <= len(warned) <= 3, caplog.text
    house.once()
    house.once()
    assert caplog.text.count('that the exporter does not serve is over') == 1


def test_an_exporter_that_has_ended_does_not_wait_for_a_glance_that_hangs(house, monkeypatch):
    """Each question takes a minute, and a round has many."""
    house.images.put(IMAGE)
    storedimages.put(house.store, Manifest(IMAGE, Standing.WANTED))
    house.conf.set_override('poll_interval', 1, 'bootcache')
    house.restart()
    hangs, answers, looks = threading.Event(), threading.Event(), []
    get = house.images.get

    def get_at_last(image_id):
        hangs.set()
        assert answers.wait(60)
        return get(image_id)

    monkeypatch.setattr(house.images, 'get', get_at_last)
    monkeypatch.setattr(house.exporter, 'start', lambda serve: looks.append(hangs.is_set()))
    try:
        house.upkeep.start()
        until(lambda: looks.count(True) > 1, 'another look at the exporter')
        assert house.state(IMAGE) == 'pending'
    finally:
        house.upkeep.stop()
        answers.set()
        for thread in threading.enumerate():
            if thread.name in ('bootcache-serving', 'bootcache-housekeeping'):
                thread.join(60)


def test_each_thread_reads_the_manifests_once_a_round(house, monkeypatch):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.once()
    read, manifests = [], house.store.manifests
    monkeypatch.setattr(house.store, 'manifests', lambda: read.append(True) or manifests())
    house.upkeep._sweeps.postpone('')
    house.once()
    assert len(read) == 2 and house.state(IMAGE) == 'ready'


def test_a_base_that_came_while_all_were_served_again_is_kept_open(house, monkeypatch):
    """An exporter that was started anew is told of thousands, each of which takes a while."""
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    kept, serve = [], house.tiers.serve

    def serve_slowly(manifest, **named):
        storedimages.put(house.store, dataclasses.replace(manifest, image_id=OTHER))
        serve(manifest, **named)

    monkeypatch.setattr(house.exporter, 'start', lambda serve: True)
    monkeypatch.setattr(house.tiers, 'serve', serve_slowly)
    monkeypatch.setattr(house.exporter, 'keep_open', lambda manifests: kept.extend(
        manifest.image_id for manifest in manifests))
    house.upkeep._serve()
    assert kept == [OTHER, IMAGE]


def test_an_exporter_that_was_ended_serves_again_what_the_database_does_not_have(
        house, monkeypatch):
    """As after certificates were renewed, beside an empty database."""
    again = []
    monkeypatch.setattr(house.exporter, 'start',
                        lambda serve: serve([f'base-{IMAGE}-0'], 'CN=one'))
    monkeypatch.setattr(house.exporter, 'serve_as_before', lambda *served: again.append(served))
    house.upkeep._serve()
    assert again == [([f'base-{IMAGE}-0'], 'CN=one')]


def test_what_was_taken_back_while_exporters_were_asked_is_not_served(house, monkeypatch):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.needs.note('compute-1', HostReport(needs=frozenset([IMAGE])))
    # Also Ceph is asked in it, for seconds.
    monkeypatch.setattr(house.exporter, 'keep_open', lambda manifests: house.store.change(
        IMAGE, lambda known: known.making(cache_image=None)))
    house.exporter.serving.clear()
    house.upkeep._serve()
    (_base, cache), = house.exporter.serving.values()
    assert cache is None


def test_manifests_that_could_not_be_read_are_read_by_the_next_step(house, monkeypatch):
    read, manifests = [], house.store.manifests

    def fails_once():
        read.append(True)
        if len(read) == 1:
            raise OSError('Input/output error')
        return manifests()

    house.once()
    monkeypatch.setattr(house.store, 'manifests', fails_once)
    house.upkeep._serve()
    assert len(read) == 2


def test_quotas_are_kept_while_nova_is_away(house, monkeypatch):
    """Nova is asked for servers that an earlier process left."""
    kept = []
    monkeypatch.setattr(house.disk_room, 'keep_quota', lambda manifests: kept.append(True))
    house.boots.away = True
    house.once()
    assert kept == [True]


def test_what_no_row_names_is_told_of_once(house):
    house.boots.away = True
    house.once()
    house.boots.away = False
    for _round in range(3):
        house.once()
    assert house.boots.looked == ['retired', 'unnamed'] * 2 + ['retired'] * 2


def test_one_image_that_glance_cannot_tell_of_does_not_hold_up_the_others(house, monkeypatch):
    get = house.images.get
    monkeypatch.setattr(house.images, 'get', lambda image_id: 1 // 0 if image_id == OTHER
                        else get(image_id))
    for image in (OTHER, IMAGE):
        house.images.put(image)
        storedimages.put(house.store, Manifest(image, Standing.WANTED))
    house.restart()
    house.once()
    house.settle()
    assert house.state(IMAGE) == 'ready' and house.upkeep.recovered
    assert house.state(OTHER) == 'pending'
    monkeypatch.setattr(house.images, 'get', get)
    house.later(60)
    house.settle()
    assert house.state(OTHER) == 'ready'


def test_glance_that_is_away_is_not_asked_for_every_image(house, monkeypatch):
    """As it hangs, each question takes a minute."""
    asked = []

    def away(image_id):
        asked.append(image_id)
        raise ks_exceptions.ConnectFailure

    for number in range(20):
        house.images.put(f'{number:08x}{IMAGE[8:]}')
        storedimages.put(house.store, Manifest(f'{number:08x}{IMAGE[8:]}',
                                               Standing.WANTED))
    with monkeypatch.context() as patch:
        patch.setattr(house.images, 'get', away)
        house.recover()
        # As many as are looked at, at a time, may be asked for when the third error comes.
        assert 3 <= len(asked) < 3 + 4
        for _minute in range(60):
            house.later(60)
        assert len(asked) < 3 + 4 + 60 * 2
    for _minute in range(11):
        house.later(60)
    house.settle()
    assert {record.state for record in house.store.manifests()} == {ImageState.READY}


# Certificates.

def test_the_exporter_s_certificate_is_told_of_before_it_ends(house, tmp_path, caplog):
    directory = SmallCA(str(tmp_path / 'ca')).issue('storage-1', days=9)
    house.conf.set_override('tls_directory', directory, 'bootcache')
    house.restart()
    for _time in range(3):
        house.once()
    assert sum(f'{directory}/server-cert.pem ends on ' in line for line in caplog.messages) == 1
