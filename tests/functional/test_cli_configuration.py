"""What ``bootcache`` says of a configuration that is not right, as a process of its own."""

import multiprocessing
import os

import pytest
from command import bootcache
from oslo_config import cfg

from bootcache import exception
from glance_bootcache import conf as glance_conf
from glance_bootcache.cli import client
from glance_bootcache.cli import service as cli_service


def last_line(done):
    """The error: nothing on standard output, no traceback, one line."""
    assert done.returncode == 1 and not done.stdout
    assert 'Traceback' not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_no_configuration_is_not_localhost(tmp_path):
    if os.path.exists('/etc/bootcache/bootcache.conf'):
        pytest.skip('this machine has a configuration')
    line = last_line(bootcache(tmp_path, 'image', 'list'))
    assert line.startswith('the message bus is not known') and '/etc/bootcache' in line \
        and '--config-file' in line


def test_a_file_without_a_bus_is_named(tmp_path):
    file = tmp_path / 'some.conf'
    file.write_text('[bootcache]\n')
    line = last_line(bootcache(tmp_path, '--config-file', file, 'image', 'list'))
    assert f'of {file};' in line and 'transport_url' in line


def test_a_file_that_is_not_there_is_named_once(tmp_path):
    file = tmp_path / 'some.conf'
    line = last_line(bootcache(tmp_path, '--config-file', file, 'image', 'list'))
    assert line.count(str(file)) == 1 and 'there is no file' in line


def _say_as_nobody(call, pipe):
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        call()
    except exception.ConfigurationError as error:
        pipe.send(str(error))


def said_to_nobody(call):
    """What a call says to a user who has no rights.

    Root may read everything, and others nothing of this tree: a process that has it already.
    """
    heard, told = multiprocessing.Pipe(duplex=False)
    reader = multiprocessing.get_context('fork').Process(target=_say_as_nobody, args=(call, told))
    reader.start()
    assert heard.poll(30)
    line = heard.recv()
    reader.join()
    return line


def test_a_file_that_may_not_be_read_is_named_once_with_the_user(directory):
    file = f'{directory}/some.conf'
    with open(file, 'w') as stream:
        stream.write('[bootcache]\n')
    os.chmod(directory, 0o755)
    os.chmod(file, 0o600 if os.geteuid() == 0 else 0)
    line = said_to_nobody(
        lambda: client.read(cfg.ConfigOpts(), 'bootcache', files=[file]))
    assert line.count(file) == 1 and 'may not be read by user' in line and '--config-file' in line


def test_a_folder_that_may_not_be_looked_into_is_not_taken_for_none(directory, monkeypatch):
    """Who is not root finds no file in /etc/bootcache, as install.rst makes it."""
    folder = f'{directory}/etc'
    os.mkdir(folder, 0o700 if os.geteuid() == 0 else 0)
    os.chmod(directory, 0o755)
    monkeypatch.setattr(client, 'FOLDER', folder)

    def ask():
        conf = cfg.ConfigOpts()
        glance_conf.register_opts(conf)
        conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
        client.check_transport(conf)

    line = said_to_nobody(ask)
    assert f'may not look into {folder};' in line and 'as root' in line


def test_a_lock_of_another_user_is_named(directory):
    """Left by a trial as root: the unit's user cannot take it."""
    state = f'{directory}/state'
    os.mkdir(state)
    os.chmod(directory, 0o755)
    os.chmod(state, 0o777)
    with open(f'{state}/lock', 'w'):
        os.chmod(f'{state}/lock', 0o600 if os.geteuid() == 0 else 0)
    line = said_to_nobody(lambda: cli_service._only_one(state))
    assert f'state_dir: {state}/lock belongs to another user' in line and 'chown' in line


def test_a_wrong_password_of_the_bus_is_told(tmp_path, rabbit):
    file = tmp_path / 'some.conf'
    file.write_text(f'[bootcache]\nrpc_timeout = 5\n'
                    f'transport_url = {rabbit.replace(":guest@", ":secret@")}\n')
    line = last_line(bootcache(tmp_path, '--config-file', file, 'image', 'list'))
    assert 'refuses guest@127.0.0.1:' in line and 'secret' not in line


def test_nobody_answers(tmp_path, rabbit):
    file = tmp_path / 'some.conf'
    file.write_text(f'[bootcache]\nrpc_timeout = 2\ntransport_url = {rabbit}\n')
    line = last_line(bootcache(tmp_path, '--config-file', file, 'image', 'list'))
    assert 'does not answer on the message bus guest@127.0.0.1:' in line \
        and 'systemctl status glance-bootcache' in line


def test_a_url_that_is_none_is_not_shown(tmp_path):
    file = tmp_path / 'some.conf'
    file.write_text('[bootcache]\ntransport_url = rabbit://guest:se#cret@host:56x72/\n')
    line = last_line(bootcache(tmp_path, '--config-file', file, 'image', 'list'))
    assert str(file) in line and 'cret' not in line
