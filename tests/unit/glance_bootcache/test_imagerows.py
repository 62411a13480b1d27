"""Images as rows: what is written is what is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache.manifest import (
    Availability,
    CacheDifference,
    CacheInfo,
    Made,
    Manifest,
    Standing,
    Wished,
    WorkingSetInfo,
)
from bootcache.reasons import Cause, Reason
from glance_bootcache.db.models import ImageRow
from glance_bootcache.storage import imagerows

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = CacheInfo('cache-1.qcow2', 1000, 900, 3, 'ab' * 32, 1 << 30, 65536, 1 << 29,
                  'nbd+unix:///base-x?socket=/run/s', 1.5, 1)
SET = WorkingSetInfo('cd' * 32, 900, 3, 4096, 'nova', 'marker', 12.5, 'login:')
DIFFERENCE = CacheDifference(IMAGE, 'sha512:cd', 100, 'ab', 50, 64, 'ef')
MADE = st.builds(Made, image_format=st.sampled_from(['', 'raw', 'qcow2']),
                 base_file=st.sampled_from([None, (1 << 63, 1700000000123456789, 1 << 40)]),
                 working_set=st.sampled_from([None, SET]),
                 cache_image=st.sampled_from([None, CACHE]),
                 difference=st.sampled_from([None, DIFFERENCE]))
# What a database cannot keep, as well.
TEXT = st.text(st.characters(codec=None))
MANIFEST = st.builds(
    Manifest, st.just(IMAGE), st.sampled_from(Standing),
    st.builds(Cause, st.sampled_from(Reason), TEXT), st.text(),
    st.builds(Wished, name=TEXT, availability=st.sampled_from(Availability)), MADE, st.text())


@given(MANIFEST)
def test_round_trip(manifest):
    stored = imagerows.storable(manifest)
    row = imagerows.to_row(stored)
    assert imagerows.from_row(row) == stored == imagerows.storable(stored)
    assert all('\0' not in text and text.encode() is not None
               for text in (row['name'], row['detail']))


def test_each_column_has_its_value():
    row = imagerows.to_row(Manifest(IMAGE))
    columns = set(ImageRow.__table__.columns.keys())
    assert {*row, 'node_id', 'term', 'version', 'last_used'} == columns
    lengths = {column.name: column.type.length for column in ImageRow.__table__.columns
               if getattr(column.type, 'length', None)}
    for name, values in (('standing', Standing), ('reason', Reason),
                         ('availability', Availability)):
        assert max(len(value.value) for value in values) <= lengths[name]


@pytest.mark.parametrize('column, value', [
    ('standing', 'odd'), ('reason', 'odd'), ('availability', 'odd'), ('base_file', '1:2'),
    ('base_file', 'x:1:2')])
def test_a_value_that_is_not_known_is_refused(column, value):
    with pytest.raises(ValueError):
        imagerows.from_row({**imagerows.to_row(Manifest(IMAGE)), column: value})
