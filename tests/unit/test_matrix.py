"""What the matrix's rows come to: outcomes, the list of those that are to differ, the table."""

import io
import json
import re
import unittest
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.matrix import lowest, nova_tests, our_tests, program, table

TOP = Path(__file__).resolve().parents[2]

KNOWN = {'A.differs': 'a mock'}


def judge(outcomes, stock=None, loaded=()):
    return nova_tests.judge(outcomes, KNOWN, stock or {}, loaded or outcomes)


def test_what_passes_and_what_is_to_differ_is_well():
    found = judge({'A.one': 'passed', 'A.differs': 'failed', 'A.other': 'skipped'})
    assert (found['ran'], found['passed'], found['expected']) == (3, 1, ['A.differs'])
    assert found['skipped'] == 1
    assert not found['failed'] and not found['gone'] and not found['not run']


def test_anything_else_that_fails_is_our_fault():
    assert judge({'A.one': 'failed', 'A.differs': 'failed'})['failed'] == ['A.one']


def test_a_difference_that_has_gone_is_told():
    assert judge({'A.differs': 'passed'})['gone'] == ['A.differs']


def test_what_fails_in_stock_as_well_is_not_ours():
    found = judge({'A.one': 'failed'}, {'A.one': 'failed'})
    assert found['failed'] == [] and found['fail in stock as well'] == ['A.one']


def test_a_test_that_did_not_run_is_told():
    assert judge({'A.one': 'passed'}, loaded=['A.one', 'A.two'])['not run'] == ['A.two']


def test_only_what_fails_unexpectedly_is_asked_of_stock():
    outcomes = {'A.one': 'failed', 'A.differs': 'failed', 'A.two': 'passed', 'A.three': 'skipped'}
    assert nova_tests.unexpected(outcomes, KNOWN) == ['A.one']


def test_what_nova_wants_to_fail_has_run():
    class Case(unittest.TestCase):
        @unittest.expectedFailure
        def test_a(self):
            self.fail()

        @unittest.expectedFailure
        def test_b(self):
            pass

    results = nova_tests.Results(io.StringIO(), False, 0)
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(results)
    assert {test[-6:]: outcome for test, outcome in results.outcomes.items()} \
        == {'test_a': 'passed', 'test_b': 'failed'}


def test_a_driver_that_names_its_own_class_begins_once():
    class Above:
        def __init__(self, virtapi):
            self.virtapi = virtapi

    class Stock(Above):
        def __init__(self, virtapi, read_only=False):
            super(module['LibvirtDriver'], self).__init__(virtapi)
            self.read_only = read_only

    class Ours(Stock):
        def __init__(self, virtapi, read_only=False):
            super().__init__(virtapi, read_only)

    Stock.__init__ = nova_tests.begin_once(Stock)
    module = {'LibvirtDriver': Ours}
    for driver in (Ours('api', True), Ours('api', True)):
        assert (driver.virtapi, driver.read_only) == ('api', True)


def test_names_are_below_the_drivers_module():
    package = 'nova.tests.unit.virt.libvirt'
    assert nova_tests.short(f'{package}.test_driver.A.test_b') == 'A.test_b'
    assert nova_tests.short(f'{package}.test_imagecache.A.test_b') == 'test_imagecache.A.test_b'


def test_each_expected_difference_has_its_reason():
    expected = nova_tests.expected()
    assert expected and all(len(reason.split()) > 5 for reason in expected.values())


def test_the_table_counts_all_that_is_wrong():
    found = {'ran': 5, 'passed': 3, 'failed': ['A.one'], 'expected': ['A.differs'],
             'gone': ['A.gone'], 'not run': ['A.two'], 'seconds': 7}
    assert table.lines({('Nova 34', 'driver'): found}) \
        == [('Nova 34', 'Nova\'s driver tests', '5', '3', '3', '1', '0', '0', '7')]
    assert [line.split(':')[0] for line in table.wrong(found)] == ['A.one', 'A.gone', 'A.two']


def test_the_table_is_printed_with_what_is_wrong_below(tmp_path, capsys):
    well = {'ran': 2, 'passed': 2, 'failed': []}
    bad = {**well, 'failed': ['test_x.py::test_y']}
    for row, part, found in (('34', 'unit', well), ('34', 'driver', well),
                             ('debian13', 'unit', well), ('debian13', 'functional', bad),
                             ('debian13', 'uefi', well), ('debian13', 'demo', well)):
        (tmp_path / row).mkdir(exist_ok=True)
        (tmp_path / row / f'{part}.json').write_text(json.dumps(found))
    assert table.main(str(tmp_path), '34') == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert table.main(str(tmp_path), '34', 'debian13') == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line[:9] for line in shown[1:7]] == ['Nova 34  '] * 2 + ['Debian 13'] * 4
    assert shown[7:] == ['Debian 13, our functional tests: test_x.py::test_y']


def report(when, outcome, test='A.one'):
    return SimpleNamespace(when=when, nodeid=test, passed=outcome == 'passed',
                           failed=outcome == 'failed', skipped=outcome == 'skipped')


def test_our_own_tests_are_counted_once():
    outcomes = our_tests.Outcomes()
    for told in (report('setup', 'passed'), report('call', 'failed'), report('teardown', 'failed'),
                 report('setup', 'skipped', 'A.two'), report('setup', 'failed', 'A.three')):
        outcomes.pytest_runtest_logreport(told)
    assert (outcomes.ran, outcomes.passed, outcomes.skipped) == (2, 0, 1)
    assert outcomes.failed == ['A.one', 'A.three']


def test_samples_are_compared_with_the_pinned_libraries_alone():
    assert our_tests.left_out(other_versions=False) == []
    assert our_tests.left_out(other_versions=True) \
        == [f'--deselect={test}' for test in our_tests.OTHER_VERSIONS]


def test_a_program_that_fails_is_told_with_its_status():
    assert program.outcome(['demo'], 0, 1.6) == {'ran': 1, 'passed': 1, 'failed': [], 'seconds': 2}
    assert program.outcome(['demo'], 1, 0)['failed'] == ['demo ended with 1']


def unmet(row, lines):
    """The requirements that a row's packages do not meet."""
    text = (TOP / 'tools' / 'matrix' / f'nova-{row}.txt').read_text()
    there = {canonicalize_name(name): version
             for name, version in re.findall(r'^([\w.-]+)==(\S+)$', text, re.MULTILINE)}
    wanted = [Requirement(line.partition('#')[0]) for line in lines if not line.startswith('#')]
    return {want.name for want in wanted
            if there[canonicalize_name(want.name)] not in want.specifier}


@pytest.mark.parametrize('row', [32, 33, 34])
def test_the_package_is_installed_beside_a_release_as_it_is(row):
    """pip would lift what the release has, otherwise."""
    assert unmet(row, (TOP / 'requirements.txt').read_text().splitlines()) == set()


def test_beside_the_oldest_release_it_is_installed_as_the_page_says():
    """Without what it requires: what is too old there, only the storage service imports."""
    page = (TOP / 'doc' / 'source' / 'install.rst').read_text()
    _, _, recipe = page.partition('Beside 2025.1 (Nova 31)')
    named = re.findall(r"'([\w.-]+>=[^']+)'", recipe.partition('--no-deps')[0])
    assert named and unmet(31, named) == set()
    assert unmet(31, (TOP / 'requirements.txt').read_text().splitlines()) \
        == {'futurist'}


def test_the_lowest_versions_are_those_that_are_named():
    wanted = '# why\nPyMySQL[rsa]>=1.1.1 # MIT\nqemu.qmp>=0.0.3 # LGPL\n'
    assert lowest.pins(wanted) == ['PyMySQL[rsa]==1.1.1', 'qemu.qmp==0.0.3']
    pinned = 'PyMySQL==1.2.4\nqemu-qmp==0.0.6\npyOpenSSL==26.4.0\nkombu==5.7.0\n'
    assert lowest.others(pinned, wanted) == ['kombu==5.7.0']


@pytest.mark.parametrize('line', ['six', 'six==1.17.0', 'six>=1.16,<2'])
def test_a_requirement_without_a_lower_bound_is_refused(line):
    with pytest.raises(ValueError, match='six'):
        lowest.pins(line)


def test_everything_that_is_required_has_a_lowest_version():
    wanted = (TOP / 'requirements.txt').read_text()
    assert len(lowest.pins(wanted)) == sum(not line.startswith('#') for line in wanted.splitlines())
