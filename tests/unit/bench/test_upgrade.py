"""Upgrades: which earlier versions are tried, and what is told of them."""

import pytest

from bench.faults import upgrade, versions
from bench.faults.kinds import GATEWAY, HOST, STORAGE
from bench.faults.report import Outcome


@pytest.mark.parametrize(('history', 'count', 'found'), [
    # Of a version that several commits changed, the first of them counts.
    (['1.5', '1.5', '1.4', '1.3', '1.3'], 2, ['before 1', 'before 2']),
    (['1.5', '1.5', '1.4', '1.3', '1.3'], 1, ['before 1']),
    (['1.5', '1.4', '1.3'], 5, ['before 0', 'before 1']), (['1.0'], 2, []), ([], 2, [])])
def test_the_versions_before_are_those_of_the_commits_before(history, count, found):
    commits = [str(number) for number in range(len(history))]
    assert versions.befores(
        commits, lambda commit: f"# VERSION = 'no'\nVERSION = '{history[int(commit)]}'\n",
        lambda commit: f'before {commit}', count) == found


@pytest.mark.parametrize(('theirs', 'goes_back'), [(1, False), (None, True), (9, True)])
def test_nobody_goes_back_to_what_cannot_read_the_manifests(tmp_path, theirs, goes_back):
    (tmp_path / 'bootcache').mkdir()
    text = (versions.TOP / 'bootcache/manifest.py').read_text()
    assert versions.manifests_of(text) >= 2
    if theirs is not None:
        text = text.replace(f'\nVERSION = {versions.manifests_of(text)}\n',
                            f'\nVERSION = {theirs}\n')
    (tmp_path / 'bootcache/manifest.py').write_text(text)
    assert versions.can_go_back(tmp_path) is goes_back


def test_each_part_is_replaced_in_each_order():
    assert all(set(order) == {STORAGE, HOST, GATEWAY} for order in upgrade.ORDERS)
    assert upgrade.ORDERS[0].index(STORAGE) < upgrade.ORDERS[0].index(HOST)
    assert upgrade.ORDERS[1].index(STORAGE) > upgrade.ORDERS[1].index(HOST)


def test_the_report_has_the_sums_of_all_steps():
    good = Outcome('host to this', 'from 1a2b3c4', 'cold', 2.5)
    bad = Outcome('the end', 'from 1a2b3c4', 'cold', 1.0, wrong_bytes=3, trouble='it hangs')
    document = upgrade.to_json(['1a2b3c4'], [good, bad])
    assert document['summary'] == {'runs': 2, 'failed_boots': 1, 'guest_errors': 0,
                                   'wrong_bytes': 3, 'leftovers': 0}
    assert [one['ok'] for one in document['steps']] == [True, False]
