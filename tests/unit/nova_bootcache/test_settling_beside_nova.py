"""Settling: Nova has precedence, and what fails is tried again."""


import oslo_messaging as messaging
import pytest
from fakes_settling import IMAGE, MAGIC, OTHER, Move, nova_works_on, settled
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import exception
from nova_bootcache.settling import serversbases
from nova_bootcache.settling.pivotstate import PivotConflict, PivotFailed, PivotRefused


def test_nova_ends_what_is_under_way(house, settler):
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.once()
    # It is not waited for until Nova is done and the lock is free.
    assert [what for what, _subject in house.did] \
        == ['asked', 'complete', 'lock', 'begin', 'wait', 'abort', 'nova']
    assert settled(house) == [] and house.locked == []
    settler.once()
    assert settled(house) == ['one']


def test_nova_comes_between_ready_and_the_end(house, settler):
    house.boots('one')
    # The first lock is taken to begin, the second one to end.
    house.then['wait'] = lambda: house.then.update(lock=lambda: nova_works_on(house, settler))
    settler.once()
    assert house.done('abort') == ['one'] and house.done('finish') == []


def test_nova_disturbs_the_settling_of_no_other_server(house, settler):
    house.boots('one')
    house.boots('two')
    house.then['wait'] = lambda: nova_works_on(house, settler, 'two')
    settler.once()
    assert house.done('abort') == [] and settled(house) == ['one', 'two']


def test_a_server_is_left_alone_until_nova_is_done(house, settler):
    house.boots('one')
    house.boots('two')
    with settler.held('one'):
        settler.once()
        assert settled(house) == ['two']
        with settler.held('one'):
            settler.once()
        settler.once()
        assert settled(house) == ['two'], 'the outer operation goes on'
    settler.once()
    assert settled(house) == ['one', 'two']


def test_an_operation_that_fails_lets_go(house, settler):
    house.boots('one')
    with pytest.raises(RuntimeError), settler.held('one'):
        raise RuntimeError('Nova failed')
    settler.once()
    assert settled(house) == ['one']


def test_an_end_that_fails_fails_no_operation(house, settler, monkeypatch, caplog):
    def abort(move):
        raise PivotConflict('which one is valid cannot be told')

    monkeypatch.setattr(Move, 'abort', abort)
    house.boots('one')
    house.then['wait'] = lambda: nova_works_on(house, settler)
    settler.once()
    assert house.done('nova') == ['one'] and 'cannot be ended' in caplog.text


def test_stopping_gives_up(house, settler):
    house.boots('one')
    house.boots('two')
    house.then['wait'] = settler.stop
    settler.once()
    assert house.done('abort') == ['one'] and house.done('begin') == ['one']
    assert settled(house) == []


def test_a_disk_that_arrives_is_looked_at_again_until_it_is_on_a_cache_image(house, settler):
    """A resize: the disk names stock Nova's base until Nova has come to it on this host."""
    house.boots('one', settles=False)
    house.stands_on('one', house.base())
    settler.once()
    assert not house.needs.needs_base(IMAGE)
    # The same inode, as qemu-img rebase -u.
    with open(house.known['one'].disk, 'wb') as stream:
        stream.write(MAGIC + house.path(IMAGE).encode())
    settler.once()
    assert house.needs.needs_base(IMAGE)


def test_stopping_ends_the_completion_of_a_base(house, settler, monkeypatch):
    def complete(*_arguments, cancelled, **_how):
        settler.stop()
        assert cancelled.is_set()
        raise exception.Cancelled('told so')

    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    house.boots('one')
    house.boots('two', OTHER)
    settler.once()
    assert house.done('asked') == [IMAGE] and house.done('begin') == []


# What fails is tried again.

@pytest.mark.parametrize('error', [exception.BootcacheError('hash'), exception.ImageRefused('data'),
                                   OSError('disk'), messaging.MessagingTimeout('bus')], ids=repr)
def test_a_base_that_cannot_be_completed_is_tried_again_later(house, settler, monkeypatch, caplog,
                                                              error):
    complete, tries = serversbases.fullbase.complete, []

    def fail(*_arguments, **_how):
        tries.append(1)
        raise error

    monkeypatch.setattr(serversbases.fullbase, 'complete', fail)
    house.boots('one')
    house.boots('two', OTHER)
    open(house.base(OTHER), 'w').close()
    settler.once()
    house.clock.now += 59
    settler.once()
    assert len(tries) == 1 and settled(house) == ['two'], 'another image is not kept waiting'
    assert caplog.text.count('not settled yet') == 1
    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)
    house.clock.now += 1
    settler.once()
    assert settled(house) == ['one', 'two']


@pytest.mark.parametrize('step', ['begin', 'wait_ready', 'finish'])
@pytest.mark.parametrize('error', [PivotRefused, PivotFailed], ids=lambda error: error.__name__)
def test_a_server_that_cannot_be_moved_is_tried_again_later(house, settler, monkeypatch, step,
                                                            error, caplog):
    whole = getattr(Move, step)

    def fail(move, *arguments):
        if move._server_id == 'one':
            raise error('not now')
        whole(move, *arguments)

    monkeypatch.setattr(Move, step, fail)
    house.boots('one')
    house.boots('two')
    settler.once()
    assert settled(house) == ['two'] and house.locked == []
    assert house.done('abort') == (['one'] if step == 'wait_ready' else [])
    assert 'server one is not settled yet' in caplog.text
    monkeypatch.setattr(Move, step, whole)
    settler.once()
    assert settled(house) == ['two']
    house.clock.now += 60
    settler.once()
    assert settled(house) == ['one', 'two']


def test_many_servers_that_cannot_be_moved_are_one_try(house, settler, monkeypatch):
    """The pause grew with each of them: the image's other servers waited for hours."""
    begin, tries = Move.begin, []

    def fail(move):
        tries.append(move._server_id)
        raise PivotRefused('not now')

    monkeypatch.setattr(Move, 'begin', fail)
    for number in range(10):
        house.boots(f'server-{number}')
    settler.once()
    house.clock.now += 59
    settler.once()
    assert len(tries) == 10
    monkeypatch.setattr(Move, 'begin', begin)
    house.clock.now += 1
    settler.once()
    assert len(settled(house)) == 10
