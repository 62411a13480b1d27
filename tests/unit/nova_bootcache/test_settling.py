"""Which servers are settled, and how settling gives way to Nova.

Nova, the host, the storage service and what moves disks are stand-ins; a disk is a small file that
has a qcow2's first bytes and names its backing file. tests/functional/test_pivot.py and
test_fullbase.py have real ones."""

import dataclasses
import os
import shutil

import pytest
from fakes_settling import (
    BANDWIDTH,
    DELAY,
    IMAGE,
    OTHER,
    settled,
)
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import exception, naming, qemuimg
from nova_bootcache.settling.settler import Settler

# What is settled.

def test_a_server_that_runs_is_moved_onto_a_base_that_is_completed_first(house, settler):
    house.boots('one')
    settler.once()
    assert [what for what, _subject in house.did] == [
        'asked', 'complete', 'lock', 'begin', 'wait', 'lock', 'finish']
    assert house.backing('one') == house.base()
    assert house.pivots == [(house.base(), 'raw', house.path(IMAGE), BANDWIDTH, 'vda')]


def test_the_base_is_completed_as_the_host_and_glance_want_it(house, settler):
    house.boots('one')
    settler.once()
    (export, stored_bytes, image_hash, image_format, how), = house.done('complete')
    assert (export, stored_bytes, image_hash, image_format) \
        == (f'stored-{IMAGE}', 5000, 'sha512:ab', 'qcow2')
    assert how['lock'].enter_result == naming.cache_file_name(IMAGE)
    assert (how['raw'], how['rate'], how['keep_free']) == (True, BANDWIDTH, 1 << 30)


def test_a_base_is_completed_once_for_all_servers(house, settler):
    for name in ('one', 'two', 'three'):
        house.boots(name)
    house.boots('four', OTHER)
    settler.once()
    assert [done[0] for done in house.done('complete')] == [f'stored-{IMAGE}', f'stored-{OTHER}']
    assert settled(house) == ['four', 'one', 'three', 'two']
    house.boots('five')
    settler.once()
    assert len(house.done('complete')) == 2 and 'five' in settled(house)


@pytest.mark.parametrize('of', ['sha512:cd', 'sha512:ab'])
def test_servers_are_put_onto_a_base_of_their_own_content_only(house, settler, of):
    """As after Glance's database was restored, also where Nova has a base of the image."""
    house.boots('one')
    open(house.base(), 'w').close()
    house.contents[IMAGE] = of
    settler.once()
    assert settled(house) == (['one'] if of == 'sha512:ab' else [])


def test_a_base_that_nova_has_made_is_used(house, settler):
    house.boots('one')
    open(house.base(), 'w').close()
    settler.once()
    assert house.done('complete') == [] and settled(house) == ['one']


@pytest.mark.parametrize('has_domain', [True, False])
def test_a_server_that_is_stopped_is_rebased(house, settler, has_domain):
    house.boots('one', running=False)
    if not has_domain:
        house.domains.clear()
    settler.once()
    assert house.done('rebase') == ['one'] and house.done('begin') == []
    assert settled(house) == ['one'] and house.locked == []


def test_without_the_storage_service_a_base_that_is_here_will_do(house, settler):
    house.boots('one')
    house.stored[IMAGE] = None
    house.notes('sha512:ab')
    settler.once()
    assert settled(house) == []
    open(house.base(), 'w').close()
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['one']


# What is not.

@pytest.mark.parametrize('change', [
    {'age': DELAY - 1}, {'settles': False}, {'image_id': ''}], ids=['young', 'busy', 'no image'])
def test_a_server_that_is_not_settled(house, settler, change):
    house.boots('one', **change)
    house.boots('two')
    settler.once()
    assert settled(house) == ['two']


@pytest.mark.parametrize('change', [{'age': DELAY - 1}, {'settles': False}])
def test_nothing_is_fetched_for_a_server_that_is_not_settled_yet(house, settler, change):
    house.boots('one', **change)
    settler.once()
    assert house.did == []
    house.boots('one')
    settler.once()
    assert settled(house) == ['one']


def test_an_image_whose_servers_are_not_to_be_settled(house, settler):
    house.boots('one')
    house.boots('two', OTHER)
    house.stored[IMAGE]['settle'] = False
    for _ in range(3):
        settler.once()
    assert settled(house) == ['two'] and house.done('asked').count(IMAGE) == 1
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['two'] and house.done('asked').count(IMAGE) == 2


def test_what_an_image_says_comes_before_its_signature(house, settler):
    """A server that is not to be settled needs no full base that stock Nova has to check."""
    house.boots('one')
    house.signed = {'one'}
    house.stored[IMAGE] = {'settle': False}
    settler.once()
    assert settler.unsettled.unwanted == {IMAGE} and house.done('asked') == [IMAGE]


def test_what_an_image_said_holds_while_it_is_deactivated(house, settler):
    """Also where a base of it is here, as of a server that went the stock way."""
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.once()
    stored, house.stored[IMAGE] = house.stored[IMAGE], {'settle': False}
    house.notes('sha512:ab')
    open(house.base(), 'w').close()
    house.clock.now += 60
    settler.once()
    assert settled(house) == []
    house.stored[IMAGE] = {**stored, 'settle': True}
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['one']


def test_nothing_is_remembered_of_servers_and_images_that_are_gone(house, settler):
    for number in range(10):
        for server, image in (('one', IMAGE), ('two', OTHER)):
            house.boots(f'{server}-{number}', image)
        house.stored[IMAGE]['settle'] = False
        settler.once()
        assert settler._bases.is_unwanted(IMAGE) and settler.unsettled.unwanted == {IMAGE}
        for server in (f'one-{number}', f'two-{number}'):
            directory = house.known.pop(server).directory
            shutil.rmtree(directory)
    settler.once()
    assert settler._chained._known == {}
    assert not settler._bases.is_unwanted(IMAGE) and settler.unsettled.unwanted == set()


def test_servers_are_settled_soon_after_their_image_says_so(house, settler, caplog):
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    with caplog.at_level('INFO'):
        for _minute in range(24 * 60):
            settler.once()
            house.clock.now += 60
        house.stored[IMAGE]['settle'] = True
        settler.once()
    assert settled(house) == ['one']
    told = [record.getMessage() for record in caplog.records
            if 'bootcache_settle' in record.getMessage()]
    assert [text.rpartition('bootcache_settle')[2] for text in told] == ['=no', '=yes']


def test_without_bandwidth_nothing_is_settled(house):
    house.boots('one')
    settler = Settler(house, house, 0, DELAY)
    settler.once()
    assert house.did == [] and house.needs.needs_base(IMAGE)


def test_boots_have_precedence(house, settler):
    house.boots('one')
    house.booting = {IMAGE}
    settler.once()
    assert house.did == []
    house.booting = set()
    settler.once()
    assert settled(house) == ['one']


def test_disks_that_are_not_ours(house, settler):
    house.boots('stock')
    house.stands_on('stock', house.base())
    house.boots('volume')
    os.unlink(house.known['volume'].disk)
    settler.once()
    assert house.done('asked') == [] and house.done('lock') == []


def test_no_base_of_a_signed_image_is_completed_unchecked(house, settler, caplog):
    house.boots('one')
    house.signed.add('one')
    settler.once()
    assert house.done('complete') == [] and settled(house) == []
    assert 'the image\'s signature has to be checked' in caplog.text


def test_one_that_the_storage_service_has_verified_is_completed(house, settler):
    house.boots('one')
    house.signed.add('one')
    for stored in house.stored.values():
        stored['signature'] = 'by this'
    settler.once()
    assert len(house.done('complete')) == 1 and settled(house) == ['one']


def test_a_base_that_stock_nova_got_and_checked_is_settled_on(house, settler):
    house.boots('one')
    house.signed.add('one')
    with open(house.base(), 'w'):
        pass
    settler.once()
    assert house.done('complete') == [] and settled(house) == ['one']


def test_qemu_img_is_not_asked_for_a_raw_disk_each_time(house, settler):
    house.boots('raw')
    with open(house.known['raw'].disk, 'wb') as disk:
        disk.write(bytes(512))
    for _ in range(3):
        settler.once()
    assert house.looked_at == [] and house.done('asked') == []


def test_a_disk_that_cannot_be_read_hides_no_other(house, settler, monkeypatch):
    house.boots('one')
    house.boots('two')
    readable = qemuimg.info

    def info(path, image_format):
        if os.path.dirname(path).endswith('one'):
            raise exception.BootcacheError('no qcow2')
        return readable(path, image_format)

    monkeypatch.setattr(qemuimg, 'info', info)
    settler.once()
    assert settled(house) == ['two']


@pytest.mark.parametrize('change', [
    lambda house: house.known.pop('one'),
    lambda house: house.known.update(one=dataclasses.replace(house.known['one'], settles=False))],
    ids=['deleted', 'busy'])
def test_a_server_that_changed_while_its_base_was_completed(house, settler, change):
    house.boots('one')
    house.then['complete'] = lambda: change(house)
    settler.once()
    assert house.done('begin') == [] and house.done('rebase') == [] and house.locked == []
