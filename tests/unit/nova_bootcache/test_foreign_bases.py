"""Servers settle onto a base that stock Nova made only if it is of their content.

The house is fakes_settling.py's: what compares two files is a stand-in there; the real one is in
tests/functional/test_fullbase.py.
"""

import errno
import os

import pytest
from fakes_settling import BANDWIDTH, DELAY, IMAGE, settled
from fakes_settling import house as house  # the fixture

from nova_bootcache.settling import fullbase
from nova_bootcache.settling.settler import Settler


@pytest.fixture
def settler(house):
    return Settler(house, house, BANDWIDTH, DELAY)


@pytest.fixture
def foreign(house):
    """The base of the server's image was made by somebody else."""
    house.boots('one')
    house.notes('sha512:ab')
    with open(house.base(), 'w') as stream:
        stream.write('a base')
    return house.base()


def test_a_base_of_another_content_is_not_used(house, settler, foreign, caplog):
    """Glance's database was restored, a server went stock, and then it was restored again."""
    house.is_same = False
    settler.once()
    assert settled(house) == [] and house.done('begin') == []
    assert any(f'base {foreign} is of another content' in record.getMessage()
               and 'Restore' in record.getMessage() for record in caplog.records)


def test_the_same_content_is_compared_once(house, settler, foreign):
    settler.once()
    assert settled(house) == ['one']
    assert house.compared == [('10.0.0.1', f'base-{IMAGE}', foreign)]
    house.boots('two')
    settler.once()
    assert settled(house) == ['one', 'two'] and len(house.compared) == 1


def test_a_base_that_we_made_is_not_compared(house, settler):
    house.boots('one')
    house.notes('sha512:ab')
    settler.once()
    house.boots('two')
    settler.once()
    assert settled(house) == ['one', 'two'] and house.compared == []


def test_a_base_that_we_made_of_another_content_is_refused_without_reading_it(house, settler,
                                                                              foreign):
    fullbase.note(foreign, 'sha512:cd')
    settler.once()
    assert settled(house) == [] and house.compared == []


def test_a_file_that_took_its_place_is_compared_anew(house, settler, foreign):
    settler.once()
    os.rename(foreign, f'{foreign}.gone')
    with open(foreign, 'w') as stream:
        stream.write('a base')
    house.boots('two')
    settler.once()
    assert settled(house) == ['one', 'two'] and len(house.compared) == 2


@pytest.mark.parametrize('when', ['while it is compared', 'before the server is moved'])
def test_a_file_that_is_replaced_meanwhile_is_not_used(house, settler, foreign, monkeypatch, when):
    def replace():
        with open(f'{foreign}.new', 'w') as stream:
            stream.write('another base')
        os.rename(f'{foreign}.new', foreign)

    if when == 'while it is compared':
        compare = fullbase.qemuimg.is_same_piece
        monkeypatch.setattr(fullbase.qemuimg, 'is_same_piece',
                            lambda *things, **how: (replace(), compare(*things, **how))[1])
    else:
        house.then['lock'] = replace
    settler.once()
    assert settled(house) == [] and house.done('begin') == []


def test_where_nothing_can_be_noted_in_it_it_is_compared_each_time(house, settler, foreign,
                                                                   monkeypatch):
    def refuse(*_arguments):
        raise OSError(errno.ENOTSUP, 'not supported')

    monkeypatch.setattr(os, 'setxattr', refuse)
    settler.once()
    house.boots('two')
    settler.once()
    assert settled(house) == ['one', 'two'] and len(house.compared) == 2


def test_nothing_is_noted_of_it_if_nobody_can_tell(house, settler, foreign):
    house.noted.clear()
    house.stored[IMAGE] = None
    settler.once()
    assert settled(house) == [] and fullbase.noted(foreign) == ''


def test_without_the_storage_service_it_is_compared_with_what_the_gateway_reads(house, settler,
                                                                                foreign):
    house.stored[IMAGE] = None
    settler.once()
    assert settled(house) == ['one']
    assert house.compared == [('10.0.0.2', f'base-{IMAGE}', foreign)]
