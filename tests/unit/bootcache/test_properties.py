"""Image properties: what tenants may write, and what becomes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception, properties
from bootcache.properties import Policy

DEFAULTS = {'default_quota': 512 << 20, 'max_quota': 2 << 30, 'default_marker': 'login:'}


def parse(**values):
    return properties.parse({f'bootcache_{key}': value for key, value in values.items()},
                            **DEFAULTS)


@pytest.mark.parametrize('text, size', [
    ('0', 0), ('536870912', 536870912), (' 42 ', 42), ('512MiB', 512 << 20),
    ('1GiB', 1 << 30), ('2GB', 2 * 10**9), ('64KiB', 64 << 10), ('1TiB', 1 << 40), (7, 7)])
def test_sizes(text, size):
    assert properties.parse_size(text) == size


def test_a_unit_of_one_letter():
    assert properties.parse_size('512M') == 512 << 20


def test_a_number_beyond_all_bounds():
    with pytest.raises(ValueError):
        properties.parse_size('9' * 400 + 'MiB')


@pytest.mark.parametrize('text', ['', ' ', 'much', '-', 'MiB', '1e9', '5 apples', '0x10', '1,5',
                                  '½', '٣', '٣MiB', '1٣MiB', '3\u00a0MiB',
                                  '1' * 3 + 'Q', '\x00', None, [], '--5'])
def test_no_sizes(text):
    with pytest.raises(ValueError):
        properties.parse_size(text)


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        size = properties.parse_size(text)
    except ValueError:
        return
    assert isinstance(size, int)


def test_defaults():
    assert parse() == Policy(512 << 20, 'login:')


def test_all_given():
    assert parse(mode=' OFF ', quota='64MiB', boot_marker='ready') == Policy(64 << 20,
                                                                            'ready')


@pytest.mark.parametrize('mode', ['', 'on', 'autooff', 'none', 1, None, 'x' * 5000])
def test_a_bad_mode_names_the_property_and_the_cure(mode):
    with pytest.raises(exception.InvalidProperty) as caught:
        parse(mode=mode)
    assert 'bootcache_mode' in str(caught.value) and 'auto, off' in str(caught.value)
    assert len(str(caught.value)) < 255


def test_a_bad_requirement_names_the_property_and_the_cure():
    """nova-scheduler's log alone has it else, where no tenant looks."""
    with pytest.raises(exception.InvalidProperty) as caught:
        parse(require='wram')
    assert str(caught.value) == "bootcache_require='wram' is not one of: driver, warm"


@pytest.mark.parametrize('quota', ['', 'much', '-5', '-5MiB', 'x' * 5000, None, 0, '1023KiB',
                                   '2049MiB', '9' * 4000, 'inf', 'nan'])
def test_a_bad_quota_names_the_property(quota):
    with pytest.raises(exception.InvalidProperty) as caught:
        parse(quota=quota)
    assert 'bootcache_quota' in str(caught.value)
    assert len(str(caught.value)) < 255


@pytest.mark.parametrize('quota', [1 << 20, '1MiB', '2GiB', 2 << 30])
def test_the_bounds_themselves_are_allowed(quota):
    assert parse(quota=quota).quota == properties.parse_size(quota)


@pytest.mark.parametrize('marker', ['', '(', '[a', '*', '(?P<a>x', 'x' * 257, '\\'])
def test_a_bad_marker_names_the_property(marker):
    with pytest.raises(exception.InvalidProperty, match='bootcache_boot_marker'):
        parse(boot_marker=marker)


def test_a_marker_that_grows_when_compiled_is_refused():
    # As mild as it can be and still be told apart from what people write: 300,000 nodes.
    with pytest.raises(ValueError):
        properties.compile_marker('((a{1000}){300})')


def test_a_marker_with_what_no_database_keeps_is_refused():
    with pytest.raises(ValueError, match='NUL'):
        properties.compile_marker('login:\0')


@pytest.mark.parametrize('marker', [
    '(?x)((a{ 1000}){ 300})', '(?x)((a{10 00}){30 0})', '(?x:((a{ 1000}){ 300}))',
    '(?ix)((a{1000 }){300 })', '((a{ 1000}){ 300})(?x)'])
def test_a_marker_that_grows_in_verbose_mode_is_refused(marker):
    with pytest.raises(ValueError):
        properties.compile_marker(marker)


@pytest.mark.parametrize('marker', [r'[a-z]{1,64} login: ?$', '(?:login|ready){1,3}', 'a{200}'])
def test_counts_that_people_write(marker):
    assert parse(boot_marker=marker).boot_marker == marker


@pytest.mark.parametrize('marker', [
    'login:\n', 'one\ntwo', 'one\rtwo', 'one\u2028two', r'one\ntwo', r'login:\R', r'\[\n\]',
    r'one\n+two'])
def test_a_marker_that_no_line_can_match_is_refused(marker):
    with pytest.raises(exception.InvalidProperty, match='line by line'):
        parse(boot_marker=marker)


@pytest.mark.parametrize('marker, line', [
    (r'(^|\n)login:', 'login:'), (r'[^\n]*login:', 'a login:'), (r'login:\n?', 'login:'),
    (r'login:\n*$', 'login:'), (r'C:\\new', 'C:\\new'), (r'[\]\n]x', ']x'), ('a|b\\n', 'a')])
def test_a_marker_that_a_line_can_match_is_taken(marker, line):
    expression = properties.compile_marker(parse(boot_marker=marker).boot_marker)
    assert expression.search(line)


def test_a_marker_of_the_longest_length():
    assert parse(boot_marker='x' * 256).boot_marker == 'x' * 256


def test_other_properties_do_not_matter():
    assert properties.parse({'os_distro': 'debian', 'bootcache_state': 'ready'}, **DEFAULTS) \
        == Policy(512 << 20, 'login:')


@given(st.dictionaries(st.sampled_from(['bootcache_mode', 'bootcache_quota',
                                        'bootcache_boot_marker']),
                       st.one_of(st.none(), st.integers(), st.text(max_size=300))))
def test_no_values_crash(values):
    try:
        policy = properties.parse(values, **DEFAULTS)
    except exception.InvalidProperty as error:
        assert str(error).startswith('bootcache_')
        return
    assert properties.MIN_QUOTA <= policy.quota <= 2 << 30
