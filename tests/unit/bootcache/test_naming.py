"""Names: the same on every host, and fit for QEMU, paths and stock Nova."""

import hashlib
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import naming

KINDS = st.sampled_from(['b', 'c', 'g', 'n', 'r', 'rs', 'rf'])


@given(st.uuids())
def test_canonical_ids_stay_and_other_writings_become_canonical(image):
    for text in (str(image), str(image).upper(), image.hex, f'{{{image}}}', image.urn):
        assert naming.canonical_image_id(text) == str(image)


@pytest.mark.parametrize('text', ['', 'x', '../../etc/passwd', '/etc', '0' * 31, 'g' * 32, '.'])
def test_nothing_else_becomes_part_of_a_path(text):
    with pytest.raises(ValueError):
        naming.canonical_image_id(text)


@given(st.uuids())
def test_file_names_are_what_nova_names_bases(image):
    assert naming.cache_file_name(str(image)) == hashlib.sha1(str(image).encode()).hexdigest()


@given(KINDS, st.uuids())
def test_node_names_are_qemus(kind, image):
    name = naming.node_name(kind, str(image))
    assert re.fullmatch(r'[a-z][a-z0-9-]{0,29}', name)
    # With the letter for the file below it still fits QEMU's 31 characters.
    assert len(name + 'f') <= 31


def test_node_names_tell_images_and_kinds_apart():
    images = [str(uuid.UUID(int=number)) for number in range(200)]
    names = {naming.node_name(kind, image) for kind in ('b', 'c', 'g', 'n', 'r', 'rs', 'rf')
             for image in images}
    assert len(names) == 7 * len(images)
    assert not names & {f'{name}f' for name in names}


@given(st.sampled_from([naming.EXPORT_BASE, naming.EXPORT_CACHE, naming.EXPORT_RECORDING]),
       st.uuids())
def test_export_names_are_qemu_ids_as_well(kind, image):
    assert re.fullmatch(r'[a-z][a-z0-9-]*', naming.export_name(kind, str(image)))


@pytest.mark.parametrize(('host', 'address'), [
    ('192.0.2.10', '192.0.2.10:10810'), ('node', 'node:10810'),
    ('2001:db8::10', '[2001:db8::10]:10810')])
def test_addresses_of_a_port(host, address):
    assert naming.tcp_address(host, 10810) == address


def test_the_uri_in_headers():
    assert naming.nbd_unix_uri('/run/bootcache/gateway.sock', 'base-x') \
        == 'nbd+unix:///base-x?socket=/run/bootcache/gateway.sock'
