"""Storage nodes that fail: what is run, and what counts as failed."""

import itertools

import pytest

from bench.faults import __main__ as command
from bench.faults import nodeplan, report
from bench.faults.nodeplan import CASES, NODES, Meanwhile, NodeOutcome, Turn
from bench.faults.wayplan import Figures
from bootcache import steps

CASE = {case.name: case for case in CASES}
GOOD = Figures(reads=100, unanswered=24.9, paused=59.0, pauses=1, until_on=4.9)


def names(turns):
    return [(turn.case.name, turn.node) for turn in turns]


def test_the_full_run_has_each_case_of_each_node():
    assert names(nodeplan.chosen([], False)) == [
        *((name, node) for name in (
            'killed', 'service-killed', 'power-loss', 'frozen', 'disk-hangs', 'cut-from-database',
            'cut-from-bus', 'full-disk', 'drained', 'clock-moved')
          for node in (*((0,) if name == 'disk-hangs' else ()), *range(1, NODES + 1))),
        ('got-again', 0), ('database-away', 0), *([('killed-at', 0)] * len(nodeplan.STEPS))]
    assert {turn.case.name: turn.seconds for turn in nodeplan.chosen([], False)}[
        'database-away'] == 600


def test_the_short_run_has_each_case_once_of_one_node_after_the_other():
    turns = nodeplan.chosen([], True)
    assert [turn.case for turn in turns] == [*CASES, CASES[-1], CASES[-1]]
    nodes = [turn.node for turn in turns if turn.node]
    assert all(before != after for before, after in itertools.pairwise(nodes))
    assert set(nodes) == set(range(1, NODES + 1))
    # Beside what else there is to do within ten minutes.
    assert sum(turn.seconds for turn in turns) < 440
    assert {turn.case.name: turn.seconds for turn in turns}['database-away'] == 60


def test_names_choose_cases():
    assert names(nodeplan.chosen(['killed'], True)) == [('killed', 1)]
    assert names(nodeplan.chosen(['cut'], True)) == [('cut-from-database', 1), ('cut-from-bus', 2)]
    assert names(nodeplan.chosen(['killed', 'drain'], False)) == [
        ('killed', 1), ('killed', 2), ('killed', 3), ('drained', 1), ('drained', 2), ('drained', 3)]
    assert nodeplan.chosen(['deletion'], False) == []
    assert {turn.case.name for turn in nodeplan.chosen(['killed-at'], True)} == {'killed-at'}
    with pytest.raises(ValueError, match=r'frosen: none of the cases .*disk-hangs.*deletion'):
        nodeplan.chosen(['frosen'], True)


def test_a_node_is_killed_at_each_step_of_the_storage_service():
    found = [turn.step for turn in nodeplan.chosen(['killed-at'], False)]
    assert len(set(found)) == len(found)
    assert {step.name for step in steps.TABLE if step.process is steps.Process.STORAGE} \
        == {*found, 'promote: copied', 'replace: written'}
    quick = [turn.step for turn in nodeplan.chosen(['killed-at'], True)]
    assert {nodeplan.STEPS[step] for step in quick} == {
        Meanwhile.REGISTERS, Meanwhile.TAKES_OVER, Meanwhile.GIVES_UP}
    assert nodeplan.STEPS['retire: withdrawn'] is Meanwhile.DELETES
    assert not any(turn.step for turn in nodeplan.chosen(['killed'], False))
    assert [turn.name for turn in nodeplan.chosen(['retire', 'serve: nodes'], True)] == [
        'killed-at serve: nodes', 'killed-at retire: withdrawn', 'killed-at retire: forgotten']


def test_cases_are_listed(capsys):
    assert command.main(['--nodes', '--list', '--quick', 'killed', 'got-', 'database-away']) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ['killed', 'storage-1'], ['got-again', 'the home of an image that is in no store'],
        ['database-away', 'all']]


@pytest.mark.parametrize(('name', 'figures', 'gap', 'moved', 'said'), [
    ('killed', {}, 59.9, 7, []),
    ('killed', {}, 60.1, 7, ['1 guests did not read for up to 60.1 s']),
    ('killed', {'unanswered': 25.1}, 1.0, 7, ['a read waited for 25.1 s']),
    ('killed', {}, 1.0, 6, ['1 of 7 images have not got another home']),
    ('killed', {}, 1.0, 8, ['1 images of nodes that work have got another home']),
    ('drained', {}, 1.0, 0, ['7 of 7 images have not got another home']),
    # Nobody need ask for them.
    ('service-killed', {}, 1.0, 0, []), ('cut-from-bus', {}, 1.0, 3, []),
    ('clock-moved', {}, 1.0, 0, []),
    ('clock-moved', {}, 1.0, 1, ['1 images have got another home, and their node works']),
    ('database-away', {}, 1.0, 2, ['2 images have got another home'])])
def test_what_is_not_as_it_has_to_be_is_told(name, figures, gap, moved, said):
    bad = Figures(**{**vars(GOOD), **figures})
    found = nodeplan.faults_of(Turn(CASE[name], 1, 25), [GOOD, bad], [1.0, gap], moved, 7)
    assert len(found) == len(said)
    assert all(part in one for part, one in zip(said, found, strict=True))


def test_a_node_without_images_has_not_failed_for_anybody():
    found, = nodeplan.faults_of(Turn(CASE['killed'], 1, 25), [GOOD], [1.0], 0, 0)
    assert 'worked on no image' in found


def test_a_guest_has_no_answer_between_two_and_until_now():
    assert nodeplan.longest_gap([9.0, 12.0, 11.0], 10.0, 14.0) == 2.0
    assert nodeplan.longest_gap([11.0], 10.0, 61.5) == 50.5
    assert nodeplan.longest_gap([], 10.0, 12.0) == 2.0


def image(number, node, **more):
    return {'image_id': f'i{number}', 'node_id': node, 'term': 1, 'standing': 'done', 'goal': '',
            'base_path': '/b', 'cache_file': 'c', **more}


def file(number, node, **more):
    return {'image_id': f'i{number}', 'node_id': node, 'name': f'c{number}', 'kind': 'cache_image',
            'state': 'ready', **more}


def rows(images, files=()):
    return {'storage_nodes': [{'id': 4, 'name': 'storage-1'}, {'id': 5, 'name': 'storage-2'}],
            'images': images, 'files': files}


def test_all_is_settled_when_homes_alone_have_files():
    assert nodeplan.unsettled(rows([image(1, 4), image(2, 5)], [file(1, 4), file(2, 5)])) == []
    for wrong in ({'standing': 'wanted'}, {'goal': 'build'}, {'base_path': ''},
                  {'cache_file': None}):
        found, = nodeplan.unsettled(rows([image(1, 4, **wrong)]))
        assert 'image i1 is' in found
    found, = nodeplan.unsettled(rows([image(1, 5)], [file(1, 4)]))
    assert 'is ready on storage-1, and storage-2 works on it' in found
    found, = nodeplan.unsettled(rows([image(1, 4)], [file(1, 4, state='retiring')]))
    assert 'is retiring on storage-1' in found
    found, = nodeplan.unsettled(rows([], [file(1, 4)]))
    assert 'and None works on it' in found


def test_what_a_node_has_is_its_rows_that_stay():
    known = rows([image(1, 4)], [file(1, 4), file(2, 5), file(3, 4, state='making')])
    assert nodeplan.files_of(known, ['storage-1']) == {
        'the node storage-1', 'row of c1 of image i1 on storage-1'}
    assert nodeplan.homes_of(known) == {'i1': 'storage-1'}


def test_an_image_that_has_come_back_has_moved():
    before = rows([image(1, 4), image(2, 4), image(3, 4)])
    after = rows([image(1, 4), image(2, 5, term=2), image(3, 4, term=3), image(4, 5, term=2)])
    assert nodeplan.moved_between(before, after) == {'i2', 'i3'}


def test_the_report_has_the_node():
    one = NodeOutcome('a', 'killed', 'nodes', 1.0, node='storage-1', moved=7, homes=7,
                      seconds_paused=2.0)
    assert one.ok and one.to_json().items() >= {
        'node': 'storage-1', 'ok': True, 'moved': 7, 'leftovers': 0, 'removed': (),
        'recorded_twice': ()}.items()
    assert 'storage-1: 7 of 7 images moved, paused 2.0 s' in nodeplan.line(one)


@pytest.mark.parametrize('wrong', [{'recorded_twice': ('i1',)}, {'removed': ('file c1',)},
                                   {'trouble': 'late'}, {'guest_errors': 1}, {'wrong_bytes': 1}])
def test_what_has_to_be_zero_fails_the_run(wrong):
    one = NodeOutcome('a', 'killed', 'nodes', 1.0, node='storage-1', **wrong)
    assert not one.ok and one.to_json()['ok'] is False
    assert not report.holds(report.summary([one]))
