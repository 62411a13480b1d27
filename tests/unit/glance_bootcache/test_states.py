"""Jobs whose end cannot be written: the database is away for a while."""

import pytest
from fakes_database import Rows

from bootcache import exception
from bootcache.manifest import Manifest, Standing, WorkingSetInfo
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SET = WorkingSetInfo('set', 900, 3, 4096, 'servers', 'marker', 12.5, 'login:')


@pytest.fixture
def rows(house, monkeypatch):
    """The images' rows cannot be written, until they can."""
    storedimages.put(house.store, Manifest(IMAGE))
    rows = Rows(house.store, monkeypatch)
    rows.is_away = True
    return rows


@pytest.mark.parametrize('error', [exception.BuildFailed('x'), exception.ImageRefused('x'),
                                   RuntimeError('x')], ids=repr)
def test_a_failure_that_cannot_be_written_ends_the_job(house, rows, error, caplog):
    job = house.manager.jobs.begin(IMAGE)

    def work():
        raise error

    house.manager._states.guarded(job, work)
    assert house.manager.jobs.of(IMAGE) is None
    assert 'what became of it cannot be written' in caplog.text
    # It can be taken up again.
    rows.is_away = False
    again = house.manager.jobs.begin(IMAGE)
    house.manager._states.guarded(again, lambda: house.manager._states.done(again) or True)
    assert house.store.load(IMAGE).standing is Standing.DONE


def test_a_working_set_that_cannot_be_written_leaves_the_image_to_its_recording(
        house, rows, monkeypatch):
    job = house.manager.jobs.begin(IMAGE)
    began = []
    turns = house.manager.jobs.recordings
    monkeypatch.setattr(turns, 'take_out', lambda image_id: began.append('taken') or began.clear)
    monkeypatch.setattr(turns, 'is_waiting', lambda image_id: True)
    monkeypatch.setattr(turns, 'submit', lambda image_id, owner, work: began.append('waits again'))
    with pytest.raises(exception.DatabaseAway):
        house.manager.set_working_set(house.store.load(IMAGE), SET)
    assert began == ['taken', 'waits again'] and house.manager.jobs.of(IMAGE) is job
    house.manager.jobs.end(job)
