"""What the tests of a real storage daemon share."""


import nbd
import pytest

from bootcache.cacheimage import Base

MIB = 1 << 20


@pytest.fixture
def base(directory, make_base):
    path = make_base(f'{directory}/base', MIB, [(0, MIB, 'data')])
    return Base(path, 'raw', MIB)


def connect(socket_path, export):
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(socket_path)
    return handle
