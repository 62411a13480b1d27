"""AppArmor's rules about the gateway's socket: what its files tell, and what they do not."""

import pytest

from nova_bootcache.gateway import socketfault

SOCKET = '/run/bootcache/gateway.sock'
DAC = '<secmodel><model>dac</model><baselabel type="kvm">+64055:+110</baselabel></secmodel>'
APPARMOR = '<secmodel><model>apparmor</model><doi>0</doi></secmodel>'


def capabilities(*models):
    return f'<capabilities><host>{"".join(models)}</host></capabilities>'


@pytest.mark.parametrize('text, found', [
    (capabilities(DAC, APPARMOR), {'dac', 'apparmor'}), (capabilities(DAC), {'dac'}),
    (capabilities(), set()), ('', set()), ('<', set())])
def test_the_models_that_libvirt_has(text, found):
    assert socketfault.models(text) == found


@pytest.mark.parametrize('rule, allowed', [
    (f'  {SOCKET} rw,', True), (f'{SOCKET} w,', True), (f'{SOCKET} r,', False),
    (f'"{SOCKET}" rw,', True), (f'owner {SOCKET} rwk,', True), (f'# {SOCKET} rw,', False),
    (f'deny {SOCKET} rw,', False), (f'file {SOCKET} rw,', True),
    ('/run/bootcache/* rw,', True), ('/run/* rw,', False), ('/run/** rw,', True),
    ('/{,var/}run/bootcache/gateway.sock rw,', True), ('/run/bootcache/gateway.soc? rw,', True),
    ('@{run}/bootcache/gateway.sock rw,', True), ('/run/bootcache/gatewayXsock rw,', False),
    ('network inet stream,', False), ('', False)])
def test_a_rule_of_apparmors(rule, allowed):
    assert socketfault.allows(f'# Servers.\n{rule}\n  /dev/null rw,\n', SOCKET) is allowed


def test_a_missing_rule_is_told_with_the_cure(tmp_path):
    rules = tmp_path / 'libvirt-qemu'
    rules.write_text('/dev/kvm rw,\n')
    found = socketfault.warning(capabilities(DAC, APPARMOR), SOCKET, [str(rules)])
    assert f'"{SOCKET} rw,"' in found and 'local/abstractions/libvirt-qemu' in found
    assert socketfault.warning(capabilities(DAC), SOCKET, [str(rules)]) == ''
    local = tmp_path / 'local'
    local.write_text(f'{SOCKET} rw,\n')
    assert socketfault.warning(capabilities(APPARMOR), SOCKET,
                               [str(rules), f'{tmp_path}/loc*']) == ''


def test_what_cannot_be_read_tells_nothing(tmp_path):
    (tmp_path / 'rules').mkdir()
    for rules in ([str(tmp_path / 'rules')], [str(tmp_path / 'missing')], []):
        assert socketfault.warning(capabilities(APPARMOR), SOCKET, rules) == ''
