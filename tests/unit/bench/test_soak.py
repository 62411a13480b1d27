"""Soaks: what grows and what does not, what collections hold, and what is complained of."""

import itertools
import json
import os
import random

import pytest

from bench.faults import census, growth, soakreport
from bench.faults.growth import ALLOWANCES, MIB, Course, Kind
from bench.faults.soakreport import Sample, Soaked

FOUR = 4


def noisy(values, noise=2):
    source = random.Random(0)
    return [value + source.choice((-noise, 0, noise)) for value in values]


@pytest.mark.parametrize('series', [
    [10] * 25, noisy([10] * 25), [*range(10), *[10] * 15], list(range(30, 5, -1)),
    # One sample sees what nobody else does.
    [10] * 23 + [90, 10], [10, 90] + [10] * 23,
    # More than before, and within what is allowed.
    [10] * 12 + [14] * 13],
    ids=['same', 'noisy', 'warming up', 'falls', 'a peak late', 'a peak early', 'within'])
def test_what_does_not_grow(series):
    assert growth.judge(series, FOUR).course is Course.STEADY


@pytest.mark.parametrize('series', [
    list(range(25)), noisy(range(0, 50, 2)), [5 * (number // 5) for number in range(25)],
    # In two steps: who knows whether there are more.
    [0] * 10 + [6] * 8 + [12] * 7,
    # A step as large as that is a leak that was not seen before.
    [0] * 12 + [13] * 13],
    ids=['each time', 'noisy', 'in stairs', 'two steps', 'too large a step'])
def test_what_grows(series):
    assert growth.judge(series, FOUR).course is Course.GROWS


@pytest.mark.parametrize('at', range(11, 24))
def test_one_step_is_no_growth_wherever_it_comes(at):
    verdict = growth.judge([0] * at + [10] * (25 - at), FOUR)
    # In the last samples it is none yet.
    assert verdict.course is (Course.STEP if at <= 22 else Course.STEADY)


def test_a_few_samples_tell_nothing():
    assert growth.judge(range(0, 900, 100), FOUR).course is Course.SHORT
    assert growth.judge(range(0, 1000, 100), FOUR).course is Course.GROWS


def test_allowances_are_what_their_reasons_say():
    assert set(ALLOWANCES) == set(Kind)
    # 30 KiB and 21 objects a round of 500.
    for kind, first, each in ((Kind.RSS, 1e8, 30 << 10), (Kind.BLOCKS, 5e5, 21)):
        series = [first + each * number for number in range(0, 500, 20)]
        assert growth.judge(series, ALLOWANCES[kind]).course is Course.GROWS


def test_the_fifths_have_all_samples_but_none_twice():
    for size in range(5, 40):
        assert growth.fifths(range(size))[0] <= size / 5
        assert len({*growth.fifths(range(size))}) == 5


class Keeper:
    """What a product's object might be."""

    def __init__(self):
        self.seen, self.names, self.what = {}, set(), 'text'


def test_collections_are_counted_by_the_names_of_their_owners():
    one, two = Keeper(), Keeper()
    one.seen[1], two.seen[1], two.names = 1, 2, {'a', 'b'}
    found = census.collections_held((__name__.partition('.')[0],))
    name = f'{__name__}.Keeper'
    assert {key: found[key] for key in found if key.startswith(name)} == {
        name: 2, f'{name}.seen': 2, f'{name}.names': 2}
    assert f'{name}.what' not in found
    assert not any(key.startswith(name) for key in census.collections_held(('bootcache',)))


def test_what_stays_in_a_collection_is_named():
    before, after = {'a.B.c': 1, 'a.B.d': 0, 'p.Known.x': 0}, {'a.B.c': 3, 'a.B.d': 9, 'a.B.e': 4,
                                                              'p.Known.x': 90}
    assert growth.collections_left(before, after, ('p.Known.',), 3) == {
        'a.B.d': (0, 9), 'a.B.e': (0, 4)}


def test_files_count_once_and_entries_not_for_a_quota(tmp_path):
    (tmp_path / 'below').mkdir()
    for name in ('one', 'below/cache-1.qcow2', 'one.json', 'one.json.new.tmp'):
        (tmp_path / name).write_bytes(b'x' * 5000)
    (tmp_path / 'link').symlink_to(tmp_path / 'one')
    (tmp_path / 'twice').hardlink_to(tmp_path / 'one')
    size = (tmp_path / 'one').stat().st_blocks * 512
    assert census.of_tier(tmp_path) == 2 * size
    assert census.of_tier(tmp_path, 'cache-*.qcow2') == size
    assert census.of_directory(tmp_path)['files'] == 4
    assert census.of_directory(tmp_path / 'no such') == {'files': 0, 'bytes': 0}


def test_what_went_does_not_count_with_what_came_for_it(tmp_path, monkeypatch):
    """A look that takes its time sees one file, and then the one that has taken its room."""
    names = iter([['one'], ['one', 'two'], ['two'], ['two']])
    for name in ('one', 'two'):
        (tmp_path / name).write_bytes(b'x' * 5000)
    monkeypatch.setattr(os, 'walk', lambda path: [(str(path), [], next(names))])
    assert census.of_tier(tmp_path) == (tmp_path / 'two').stat().st_blocks * 512
    names = itertools.cycle([['one'], ['two']])
    assert census.of_tier(tmp_path) is None
    made = Soaked({'compute disk': 16 * MIB})
    made.note_tiers({'compute disk': None})
    assert (made.tiers, made.looks) == ({'compute disk': 0}, 0)


def sample(rounds, rss=100 * MIB, queues=None, kept=0, passed=soakreport.WANTED):
    process = {'rss': rss, 'descriptors': 20, 'threads': 9, 'blocks': 500_000,
               'collections': {'a.B.c': kept}, 'passed': dict.fromkeys(passed, 3)}
    return Sample(rounds, {'storage': process, 'host': {**process, 'rss': 100 * MIB},
                           'storage state': {'files': 50, 'bytes': 9 * MIB}},
                  queues or {'bootcache': 0})


@pytest.fixture
def soaked():
    """One in which all is right."""
    made = Soaked({'compute disk': 16 * MIB}, rounds=500, begin=sample(0),
                  samples=[sample(20 * number) for number in range(1, 26)], end=sample(500))
    made.note_tiers({'compute disk': 15 * MIB})
    return made


def test_a_soak_in_which_all_is_right_holds(soaked):
    assert soaked.complaints() == [] and soaked.holds()
    assert not any('NOT RIGHT' in line for line in soaked.table())


@pytest.mark.parametrize(('change', 'complaint'), [
    ({'trouble': 'it hangs'}, 'it hangs'), ({'left': ['export x']}, 'left: export x'),
    ({'wrong': 512}, '512 wrong bytes'), ({'errors': 1}, '1 guest errors'),
    ({'tiers': {'compute disk': 16 * MIB + 1}}, 'compute disk was 1 bytes over its quota'),
    ({'samples': [sample(20 * number, rss=(100 + 3 * number) * MIB) for number in range(1, 26)]},
     'storage grows in rss: 124.0 -> 169.0 MiB (8.0 more allowed)'),
    ({'end': sample(500, kept=16)}, 'host: a.B.c had 0 and has 16'),
    ({'end': sample(500, queues={'reply': 2})}, '2 messages wait in reply'),
    ({'end': sample(500, passed=soakreport.WANTED[1:])}, 'never passed: evict: file gone')])
def test_whatever_is_not_right_is_told(soaked, change, complaint):
    for name, value in change.items():
        setattr(soaked, name, value)
    assert complaint in soaked.complaints()
    assert not soaked.holds() and not soaked.to_json()['ok']
    assert f'NOT RIGHT: {complaint}' in soaked.table()


def test_the_report_has_the_soak_beside_what_was_there(tmp_path, soaked):
    (tmp_path / 'report.json').write_text('{"summary": {"runs": 3}}')
    soakreport.add(tmp_path, 'soak', soaked.to_json())
    document = json.loads((tmp_path / 'report.json').read_text())
    assert document['summary'] == {'runs': 3}
    assert document['soak']['tiers'] == {'compute disk': {'quota': 16 * MIB, 'most': 15 * MIB}}
    figures = {(one['of'], one['kind']): one for one in document['soak']['figures']}
    assert figures['storage', 'rss']['course'] == 'steady'
    assert len(figures['storage', 'rss']['samples']) == 25
    soakreport.add(tmp_path / 'new', 'soak', soaked.to_json())
    assert json.loads((tmp_path / 'new' / 'report.json').read_text())['soak']['rounds'] == 500
