"""What cache images take of a host's space, as Placement is told."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from nova_bootcache.novadriver.diskconf import with_reserve

UNITS = {'DISK_GB': 1 << 30, 'MEMORY_MB': 1 << 20}
FIELDS = st.fixed_dictionaries({'total': st.integers(0, 10_000), 'allocation_ratio': st.just(1.0)},
                               optional={'reserved': st.integers(0, 10_000)})
INVENTORIES = st.dictionaries(st.sampled_from(['VCPU', 'PCPU', *UNITS]), FIELDS)
QUOTAS = st.dictionaries(st.sampled_from(list(UNITS)), st.integers(0, 1 << 44))


def disk(total, **more):
    return {'DISK_GB': {'total': total, **more}}


def test_a_quota_is_rounded_up():
    assert with_reserve(disk(100, reserved=0), {'DISK_GB': 1})['DISK_GB']['reserved'] == 1
    assert with_reserve(disk(100, reserved=0), {'DISK_GB': 3 << 30})['DISK_GB']['reserved'] == 3
    assert with_reserve(disk(100, reserved=0), {'DISK_GB': (3 << 30) + 1})['DISK_GB'][
        'reserved'] == 4


def test_each_class_has_its_own_unit():
    inventory = {'DISK_GB': {'total': 100, 'reserved': 0},
                 'MEMORY_MB': {'total': 8192, 'reserved': 0}}
    found = with_reserve(inventory, {'DISK_GB': 10 << 30, 'MEMORY_MB': 1 << 30})
    assert (found['DISK_GB']['reserved'], found['MEMORY_MB']['reserved']) == (10, 1024)


def test_it_comes_beside_what_nova_reserves():
    assert with_reserve(disk(100, reserved=7), {'DISK_GB': 10 << 30})['DISK_GB']['reserved'] == 17


def test_what_nova_does_not_mention_is_nothing():
    assert with_reserve(disk(100), {'DISK_GB': 10 << 30})['DISK_GB']['reserved'] == 10


def test_never_more_than_there_is():
    assert with_reserve(disk(5, reserved=1), {'DISK_GB': 10 << 30})['DISK_GB']['reserved'] == 5


def test_a_class_that_the_host_does_not_report_is_not_made_up():
    assert with_reserve({'VCPU': {'total': 2}}, {'DISK_GB': 1 << 30}) == {'VCPU': {'total': 2}}


@given(INVENTORIES, QUOTAS)
def test_all_but_the_reserve_stays_and_the_reserve_holds_the_quota(inventory, quotas):
    before = copy.deepcopy(inventory)
    found = with_reserve(inventory, quotas)
    assert inventory == before
    assert found.keys() == inventory.keys()
    for name, fields in found.items():
        if name not in quotas:
            assert fields == inventory[name]
            continue
        assert {**fields, 'reserved': 0} == {**inventory[name], 'reserved': 0}
        room = fields['reserved'] - inventory[name].get('reserved', 0)
        assert fields['reserved'] <= fields['total']
        assert fields['reserved'] == fields['total'] or (
            quotas[name] <= room * UNITS[name] < quotas[name] + UNITS[name])
