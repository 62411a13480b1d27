"""On which flavor a profile boot runs, and what becomes of one that Nova finds no host for."""

import types

import pytest

from bootcache import exception
from glance_bootcache.profileboot import throughnova
from glance_bootcache.profileboot.throughnova import Flavor, choose_flavor

FLAVORS = [Flavor('1', 'big', 4096, 40), Flavor('2', 'small', 512, 5), Flavor('3', 'tiny', 64, 0),
           Flavor('4', 'bare', 512, 0), Flavor('5', 'twin', 512, 5)]
GIB = 1 << 30


@pytest.mark.parametrize('wanted, min_ram, min_disk, size, expected', [
    (None, 64, 0, 1, 'tiny'),
    (None, 512, 0, 1, 'bare'),
    (None, 513, 0, 40 * GIB, 'big'),
    (None, 512, 6, 1, 'bare'),
    ('big', 64, 0, 1, 'big'),
    # The operator knows better.
    ('tiny', 4096, 40, 99 * GIB, 'tiny'),
    ('', 64, 0, 1, 'tiny')])
def test_flavor(wanted, min_ram, min_disk, size, expected):
    assert choose_flavor(FLAVORS, wanted, min_ram, min_disk, size).name == expected


@pytest.mark.parametrize('size, fits', [(5 * GIB, True), (5 * GIB + 1, False), (1, True)])
def test_the_base_has_to_fit_the_flavors_disk(size, fits):
    flavors = [Flavor('2', 'small', 512, 5)]
    if fits:
        assert choose_flavor(flavors, None, 512, 0, size).name == 'small'
    else:
        with pytest.raises(exception.ServiceAway, match='6 GiB'):
            choose_flavor(flavors, None, 512, 0, size)


def test_equal_flavors_have_an_order():
    assert choose_flavor([FLAVORS[4], FLAVORS[1]], None, 512, 5, 1).name == 'small'
    assert choose_flavor([FLAVORS[1], FLAVORS[4]], None, 512, 5, 1).name == 'small'


def test_the_operators_flavor_has_to_have_room_for_the_image():
    assert choose_flavor(FLAVORS, 'small', 64, 0, 5 * GIB).name == 'small'
    for min_disk, size in ((0, 5 * GIB + 1), (6, 1)):
        with pytest.raises(exception.ServiceAway, match='profile_flavor'):
            choose_flavor(FLAVORS, 'small', 64, min_disk, size)


@pytest.mark.parametrize('flavors, wanted, option', [
    ([], None, 'profile_flavor'), (FLAVORS, 'huge', 'profile_flavor'),
    ([FLAVORS[2]], None, 'profile_flavor')])
def test_no_flavor_names_the_option(flavors, wanted, option):
    with pytest.raises(exception.ServiceAway, match=option):
        choose_flavor(flavors, wanted, 512, 1, GIB)


GPU = Flavor('6', 'a.gpu', 64, 0, False)


def test_private_flavors_and_such_with_extra_specs_are_for_others():
    """One for GPUs that was the smallest was taken, and no host found for it."""
    assert choose_flavor([GPU, *FLAVORS], None, 64, 0, 1).name == 'tiny'
    assert choose_flavor([GPU, FLAVORS[0]], None, 64, 0, 1).name == 'big'
    with pytest.raises(exception.ServiceAway, match=r'profile_flavor.*: a\.gpu'):
        choose_flavor([GPU, FLAVORS[0]], None, 64, 0, 41 * GIB)
    assert choose_flavor([GPU, *FLAVORS], 'a.gpu', 64, 0, 1) is GPU


def test_what_nova_says_of_a_flavor():
    """Where the service's user may not see extra specs, Nova leaves them out."""
    def nova(**more):
        return types.SimpleNamespace(flavors=types.SimpleNamespace(list=lambda is_public: [
            types.SimpleNamespace(id='1', name='x', ram=64, disk=1,
                                  **{'is_public': True, 'extra_specs': {}, **more})]))

    def is_plain(**more):
        flavor, = throughnova.flavors_of(nova(**more))
        assert (flavor.flavor_id, flavor.name, flavor.ram, flavor.disk) == ('1', 'x', 64, 1)
        return flavor.is_plain

    assert is_plain() and is_plain(extra_specs=None)
    assert not is_plain(is_public=False)
    assert not is_plain(extra_specs={'hw:mem_page_size': 'large'})
