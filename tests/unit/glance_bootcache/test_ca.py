"""``bootcache ca``: certificates that OpenSSL verifies, for the hosts and uses that were named."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from bootcache import exception
from glance_bootcache.smallca import SmallCA

PAGES = Path(__file__).resolve().parents[3] / 'doc' / 'source'


def openssl(*command):
    return subprocess.run(['openssl', *map(str, command)], capture_output=True, text=True)


def verifies(ca, host, purpose, *more):
    return openssl('verify', '-CAfile', f'{ca}/ca-cert.pem', '-purpose', purpose, *more,
                   f'{ca}/{host}/{purpose.removeprefix("ssl")}-cert.pem').returncode == 0


def test_a_host_has_certificates_for_what_it_is_called(tmp_path, cli):
    assert cli.json('ca', f'{tmp_path}/ca', 'storage-1,192.0.2.10,2001:db8::1', 'compute-1') == [
        {'host': 'storage-1', 'files': f'{tmp_path}/ca/storage-1'},
        {'host': 'compute-1', 'files': f'{tmp_path}/ca/compute-1'}]
    for host in 'storage-1', 'compute-1':
        files = {path.name: path.stat().st_mode & 0o777
                 for path in Path(tmp_path, 'ca', host).iterdir()}
        assert files == {'ca-cert.pem': 0o644, 'server-cert.pem': 0o644, 'server-key.pem': 0o600,
                         'client-cert.pem': 0o644, 'client-key.pem': 0o600,
                         'exchange-cert.pem': 0o644, 'exchange-key.pem': 0o600}
        assert verifies(f'{tmp_path}/ca', host, 'sslserver')
        assert verifies(f'{tmp_path}/ca', host, 'sslclient')
    for name, value in (('hostname', 'storage-1'), ('ip', '192.0.2.10'), ('ip', '2001:db8::1')):
        assert verifies(f'{tmp_path}/ca', 'storage-1', 'sslserver', f'-verify_{name}', value)
        assert not verifies(f'{tmp_path}/ca', 'compute-1', 'sslserver', f'-verify_{name}', value)
    assert os.stat(tmp_path / 'ca' / 'ca-key.pem').st_mode & 0o777 == 0o600
    # OpenSSL's own form of names differs by its version.
    assert openssl('x509', '-noout', '-subject', '-nameopt', 'RFC2253', '-in',
                   tmp_path / 'ca/compute-1/client-cert.pem').stdout == 'subject=CN=compute-1\n'


@pytest.mark.parametrize('use', ['server', 'client', 'exchange'])
def test_qemus_of_all_releases_take_the_certificates(tmp_path, cli, use):
    """10.0.2 asks for key encipherment, 10.0.13 and 7.2.22 do not."""
    cli.json('ca', str(tmp_path), 'storage-1')
    text = openssl('x509', '-noout', '-ext', 'keyUsage', '-in',
                   tmp_path / 'storage-1' / f'{use}-cert.pem').stdout
    assert re.search('Digital Signature, Key Encipherment$', text, re.M), text


def test_with_a_certificate_to_exchange_nobody_is_taken_for_a_host(tmp_path, cli):
    cli.json('ca', str(tmp_path), 'storage-1,192.0.2.10')
    member = tmp_path / 'storage-1' / 'exchange-cert.pem'
    for purpose in 'sslserver', 'sslclient':
        for name, value, is_right in (('hostname', 'bootcache-exchange', True),
                                      ('hostname', 'storage-1', False),
                                      ('ip', '192.0.2.10', False)):
            assert (openssl('verify', '-CAfile', tmp_path / 'ca-cert.pem', '-purpose', purpose,
                            f'-verify_{name}', value, member).returncode == 0) is is_right


def test_a_ca_that_is_there_is_used_again(tmp_path, cli):
    def read(name):
        return (tmp_path / name).read_text()

    cli.json('ca', str(tmp_path), 'one')
    ca, certificate = read('ca-cert.pem'), read('one/client-cert.pem')
    cli.json('ca', str(tmp_path), 'one', 'two', '--days', '9')
    assert read('ca-cert.pem') == ca == read('two/ca-cert.pem')
    assert read('one/client-cert.pem') != certificate
    assert openssl('x509', '-noout', '-checkend', 8 * 86400, '-in',
                   tmp_path / 'one/client-cert.pem').returncode == 0
    assert openssl('x509', '-noout', '-checkend', 10 * 86400, '-in',
                   tmp_path / 'one/client-cert.pem').returncode == 1


def test_what_was_revoked_stays_so(tmp_path, cli):
    def valid(host):
        return verifies(tmp_path, host, 'sslclient', '-crl_check', '-CRLfile',
                        tmp_path / 'ca-crl.pem')

    cli.json('ca', str(tmp_path), 'one', 'two', 'three')
    assert cli.json('ca', '--revoke', str(tmp_path), 'one') == [
        {'host': 'one', 'revoked in': f'{tmp_path}/ca-crl.pem'}]
    assert [valid(host) for host in ('one', 'two', 'three')] == [False, True, True]
    assert cli.json('ca', '--revoke', str(tmp_path), 'two') == [
        {'host': 'two', 'revoked in': f'{tmp_path}/ca-crl.pem'}]
    assert [valid(host) for host in ('one', 'two', 'three')] == [False, False, True]


def test_what_was_replaced_is_revoked_as_well(tmp_path, cli):
    cli.json('ca', str(tmp_path), 'one', 'two')
    shutil.copytree(tmp_path / 'one', tmp_path / 'earlier')
    cli.json('ca', str(tmp_path), 'one')
    cli.json('ca', '--revoke', str(tmp_path), 'one')
    more = '-crl_check', '-CRLfile', tmp_path / 'ca-crl.pem'
    for host, is_valid in (('earlier', False), ('one', False), ('two', True)):
        for purpose in 'sslclient', 'sslserver':
            assert verifies(tmp_path, host, purpose, *more) is is_valid
    # A host that is let in again has others.
    cli.json('ca', str(tmp_path), 'one')
    assert verifies(tmp_path, 'one', 'sslclient', *more)


@pytest.mark.parametrize('is_renewed', [False, True])
def test_what_is_there_is_revoked_also_where_it_was_noted_nowhere(tmp_path, cli, is_renewed):
    cli.json('ca', str(tmp_path), 'one')
    shutil.copytree(tmp_path / 'one', tmp_path / 'earlier')
    (tmp_path / 'issued_one').unlink()
    if is_renewed:
        cli.json('ca', str(tmp_path), 'one')
    cli.json('ca', '--revoke', str(tmp_path), 'one')
    for host in 'earlier', 'one':
        assert not verifies(tmp_path, host, 'sslclient', '-crl_check', '-CRLfile',
                            tmp_path / 'ca-crl.pem')


def test_what_the_pages_say_runs(tmp_path, cli):
    for page in 'cli', 'install':
        examples = re.findall(r'^ +bootcache (ca .*)$', (PAGES / f'{page}.rst').read_text(), re.M)
        assert len(examples) == {'cli': 2, 'install': 3}[page]
        for example in examples:
            words = shlex.split(example.replace('/root/', f'{tmp_path}/'))
            done = cli(*words)
            assert done.code == 0 and words[-1] in done.out, done.err
        assert sum('compute-2' in example for example in examples) == 2
    assert verifies(tmp_path / 'bootcache-ca', 'storage-1', 'sslserver', '-verify_ip', '192.0.2.10')


def test_renewed_files_take_the_place_of_the_earlier_by_the_page(tmp_path, cli):
    """The page's commands, of both kinds of nodes, with this user in place of theirs."""
    page = (PAGES / 'install.rst').read_text()
    for user, host in ('glance', 'storage-1'), ('nova', 'compute-1'):
        commands = re.findall(rf'^ +(install .*{user} -g {user} .* /\S+)$', page, re.M)
        # The list of what is revoked is the storage node's alone.
        lists = [commands.pop()] if user == 'glance' else []
        assert all(command.count('ca-crl.pem') == 1 for command in lists)
        # The folder, the files, and the files once more.
        assert len(commands) == 3 and commands[1] == commands[2]
        for number, command in enumerate(commands):
            if number:
                cli.json('ca', f'{tmp_path}/bootcache-ca', 'storage-1', 'compute-1')
            command = command.replace(f'-o {user} -g {user}', f'-o {os.getuid()} -g {os.getgid()}')
            for path, here in (('/root/bootcache-ca', 'bootcache-ca'),
                               ('/root/compute-1', 'bootcache-ca/compute-1'),
                               ('/etc/bootcache', host)):
                command = command.replace(path, f'{tmp_path}/{here}')
            subprocess.run(['bash', '-ec', f'mkdir -p {tmp_path}/{host}; {command}'], check=True)
            there = {path.name: path.read_text() for path in Path(tmp_path, host, 'pki').iterdir()}
            assert there == ({path.name: path.read_text() for path in Path(
                tmp_path, 'bootcache-ca', host).iterdir()} if number else {})
        for command in lists:
            cli.json('ca', '--revoke', f'{tmp_path}/bootcache-ca', 'compute-1')
            command = command.replace(f'-o {user} -g {user}', f'-o {os.getuid()} -g {os.getgid()}')
            command = command.replace('/root/bootcache-ca', f'{tmp_path}/bootcache-ca').replace(
                '/etc/bootcache', f'{tmp_path}/{host}')
            subprocess.run(['bash', '-ec', command], check=True)
            listed = openssl('crl', '-noout', '-text', '-in', tmp_path / host / 'pki/ca-crl.pem')
            assert 'Serial Number' in listed.stdout


def test_a_renewed_certificate_is_for_what_the_earlier_one_was(tmp_path, cli):
    def is_for(name, value):
        return verifies(tmp_path, 'storage-1', 'sslserver', f'-verify_{name}', value)

    cli.json('ca', str(tmp_path), 'storage-1,192.0.2.10,2001:db8::1,storage.example.org')
    first = (tmp_path / 'storage-1/server-cert.pem').read_text()
    done = cli('ca', str(tmp_path), 'storage-1')
    assert done.code == 0 and 'storage-1: for' in done.err
    assert all(one in done.err for one in ('192.0.2.10', '2001:db8::1', 'storage.example.org'))
    assert (tmp_path / 'storage-1/server-cert.pem').read_text() != first
    for name, value in (('hostname', 'storage-1'), ('hostname', 'storage.example.org'),
                        ('ip', '192.0.2.10'), ('ip', '2001:db8::1')):
        assert is_for(name, value)
    # Others are had by naming them.
    assert not cli('ca', str(tmp_path), 'storage-1,192.0.2.11').err
    assert is_for('ip', '192.0.2.11') and not is_for('ip', '192.0.2.10')
    # Where nobody can know what it was for.
    shutil.rmtree(tmp_path / 'storage-1')
    done = cli('ca', str(tmp_path), 'storage-1')
    assert done.code == 0 and 'for this name alone' in done.err
    (tmp_path / 'storage-1/server-cert.pem').write_text('nothing')
    done = cli('ca', str(tmp_path), 'storage-1')
    assert done.code == 1 and f'move {tmp_path}/storage-1 away' in done.err
    # A new one had nothing before.
    assert not cli('ca', str(tmp_path), 'compute-1').err


@pytest.mark.parametrize('name', ['h,999.1.1.1', 'h,192.0.2', 'h,192.0.2.1.1', 'h,2001:db8::g',
                                  'h,192.0.2.10:10810', '10.0.0.256'])
def test_what_looks_like_an_address_and_is_none_is_refused(tmp_path, cli, name):
    done = cli('ca', f'{tmp_path}/ca', name)
    assert done.code == 2 and 'looks like an address, and is none' in done.err
    assert not (tmp_path / 'ca').exists()


@pytest.mark.parametrize('name', ['../x', 'a/b', '', '.', 'a,', 'a b', '-a'])
def test_a_name_that_is_none_is_refused(tmp_path, cli, name):
    done = cli('ca', f'{tmp_path}/ca', '--', name)
    assert done.code == 2 and 'is not a name of letters, digits, dots and dashes' in done.err
    assert not (tmp_path / 'ca').exists()


def test_refusals_name_the_cure(tmp_path, cli):
    SmallCA(str(tmp_path)).issue('one')
    done = cli('ca', '--revoke', str(tmp_path), 'nobody')
    assert done.code == 1 and 'nobody has no certificate' in done.err
    (tmp_path / 'ca-key.pem').write_text('nothing')
    with pytest.raises(exception.RequestRefused, match='name another directory'):
        SmallCA(str(tmp_path))
    (tmp_path / 'file').write_text('')
    done = cli('ca', f'{tmp_path}/file/ca', 'one')
    assert done.code == 1 and 'name a folder that you may write' in done.err


def test_nothing_is_made_where_something_is_to_be_revoked(tmp_path, cli):
    done = cli('ca', '--revoke', str(tmp_path / 'typo'), 'one')
    assert done.code and 'has no CA; name the folder with which' in done.err
    assert not os.path.exists(tmp_path / 'typo')


def test_no_certificate_of_a_ca_is_written_over(tmp_path, cli):
    """As a site's own, or that of hosts: a folder for NBD has its file of the same name."""
    taken = SmallCA(str(tmp_path / 'ca')).issue('one')
    before = {path.name: path.read_bytes() for path in Path(taken).iterdir()}
    done = cli('ca', taken, 'two')
    assert done.code == 1 and 'name another folder: no certificate of a CA is written' in done.err
    assert {path.name: path.read_bytes() for path in Path(taken).iterdir()} == before


def test_a_ca_whose_certificate_is_not_there_makes_no_other_one(tmp_path, cli):
    SmallCA(str(tmp_path)).issue('one')
    key = (tmp_path / 'ca-key.pem').read_bytes()
    os.remove(tmp_path / 'ca-cert.pem')
    done = cli('ca', str(tmp_path), 'two')
    assert done.code == 1 and 'put it back, as it is in each host\'s folder' in done.err
    assert (tmp_path / 'ca-key.pem').read_bytes() == key
    shutil.copy(tmp_path / 'one/ca-cert.pem', tmp_path)
    assert cli('ca', str(tmp_path), 'two').code == 0


def test_one_that_was_not_made_to_its_end_is_made(tmp_path, cli):
    SmallCA(str(tmp_path / 'ca'))
    os.remove(tmp_path / 'ca/ca-cert.pem')
    assert cli('ca', str(tmp_path / 'ca'), 'one').code == 0
    assert verifies(tmp_path / 'ca', 'one', 'sslserver')
