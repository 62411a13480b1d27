"""What the outcomes of Nova's own tests come to, and the list of those that are to differ."""

from tools.matrix import nova_tests, table

KNOWN = {'A.differs': 'a mock'}


def judge(outcomes, stock=None):
    return nova_tests.judge(outcomes, KNOWN, stock or dict.fromkeys(outcomes, 'passed'))


def test_what_passes_and_what_is_to_differ_is_well():
    found = judge({'A.one': 'passed', 'A.differs': 'failed', 'A.other': 'skipped'})
    assert (found['ran'], found['passed'], found['expected']) == (3, 1, ['A.differs'])
    assert not found['failed'] and not found['gone'] and not found['not run']


def test_anything_else_that_fails_is_our_fault():
    assert judge({'A.one': 'failed', 'A.differs': 'failed'})['failed'] == ['A.one']


def test_a_difference_that_has_gone_is_told():
    assert judge({'A.differs': 'passed'})['gone'] == ['A.differs']


def test_what_fails_in_stock_as_well_is_not_ours():
    found = judge({'A.one': 'failed'}, {'A.one': 'failed'})
    assert found['failed'] == [] and found['fail in stock as well'] == ['A.one']


def test_a_test_that_did_not_run_is_told():
    assert judge({'A.one': 'passed'}, {'A.one': 'passed', 'A.two': 'passed'})['not run'] \
        == ['A.two']


def test_each_expected_difference_has_its_reason():
    expected = nova_tests.expected()
    assert expected and all(len(reason.split()) > 5 for reason in expected.values())


def test_the_table_counts_all_that_is_wrong():
    found = {'ran': 5, 'passed': 3, 'failed': ['A.one'], 'expected': ['A.differs'],
             'gone': ['A.gone'], 'not run': ['A.two']}
    assert table.lines({('Nova 34', 'driver'): found}) \
        == [('Nova 34', 'Nova\'s driver tests', '5', '3', '3', '1')]
    assert [line.split(':')[0] for line in table.wrong(found)] == ['A.one', 'A.gone', 'A.two']
