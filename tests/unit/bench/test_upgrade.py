"""Upgrades: which earlier versions are tried, and what is told of them."""

import pytest

from bench.faults import upgrade, versions
from bench.faults.kinds import GATEWAY, HOST, STORAGE
from bench.faults.report import Outcome


@pytest.mark.parametrize(('tags', 'found'), [
    (['1.1.0', '1.0.1', '1.0.0'], ['1.1.0', '1.0.1']), (['other', 'v1.0.0'], ['v1.0.0'])])
def test_the_earlier_versions_are_the_last_releases(monkeypatch, tags, found):
    monkeypatch.setattr(versions, '_git', lambda *arguments: '\n'.join(tags).encode())
    assert versions.defaults() == found


def test_without_a_release_a_commit_has_to_be_named(monkeypatch):
    monkeypatch.setattr(versions, '_git', lambda *arguments: b'other\n')
    with pytest.raises(versions.NoSuchVersion, match='no tag of a release'):
        versions.defaults()


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
