"""Where Nova's own objects give less than they usually do: that is no reason to fail a server.

Nova's objects are real; its connection to libvirt and the host are stand-ins.
"""

import types

import pytest
from nova import objects
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import imagebackend

from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.novaservers import NovaServers

objects.register_all()
SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


class OtherLibvirt:
    """Stands for the libvirt that Nova has loaded: not the one that is installed beside us."""

    VIR_ERR_NO_DOMAIN = 7

    class libvirtError(Exception):  # libvirt's name
        def __init__(self, code):
            super().__init__(f'error {code}')
            self._code = code

        def get_error_code(self):
            return self._code


@pytest.mark.parametrize('code, found', [(7, None), (1, OtherLibvirt.libvirtError)])
def test_errors_of_the_libvirt_that_nova_uses_are_understood(monkeypatch, code, found):
    monkeypatch.setattr(libvirt_host, 'libvirt', OtherLibvirt)

    def look_up(_server_id, _urgent):
        raise OtherLibvirt.libvirtError(code)

    servers = NovaServers(None)
    servers._calls = types.SimpleNamespace(find=look_up)
    if found is None:
        assert servers.bounded_domain(SERVER) is None
    else:
        with pytest.raises(found):
            servers.bounded_domain(SERVER)


def test_a_server_whose_metadata_cannot_be_had_gets_its_disk_all_the_same(monkeypatch, tmp_path):
    """An instance without a context cannot load what it lacks."""
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    (tmp_path / SERVER).mkdir()
    orphan = objects.Instance(uuid=SERVER, image_ref=IMAGE, kernel_id='', vm_state='building',
                              task_state='spawning')
    made = []
    chains = types.SimpleNamespace(
        make_overlay=lambda server, server_id, token, *_others, **_more: (
            made.append((server.image_id, server_id, token)), True)[1])
    disk = BootCacheQcow2.bound_to(types.SimpleNamespace(chains=chains))(orphan, 'disk')
    disk.cache(None, 'base', 1 << 30, image_id=IMAGE)
    assert made == [(IMAGE, SERVER, None)]
