"""doc/source/install.rst on MariaDB and PostgreSQL: its commands are run as they stand there."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from command import command
from test_database import MANAGE

from tools.databases import MariaDB, PostgreSQL

PAGE = (Path(__file__).resolve().parents[2] / 'doc' / 'source' / 'install.rst').read_text()


class OnMariaDB:
    """Runs a command of the page on a server of the test's own."""

    kind, scheme, prefix = MariaDB, 'mysql+pymysql', 'mariadb '

    @staticmethod
    def run(server, line):
        return server.run('sh', '-c', line.replace(
            'mariadb ', f'mariadb --no-defaults --socket={server.home}/socket --user=root ', 1))

    @staticmethod
    def url(server, url):
        return url.replace('@controller/', '@localhost/') + f'&unix_socket={server.home}/socket'


class OnPostgreSQL:
    """The same; its commands are run as its user."""

    kind, scheme, prefix = PostgreSQL, 'postgresql+psycopg2', 'runuser -u postgres -- '

    @classmethod
    def run(cls, server, line):
        return server.run('env', f'PGHOST={server.home}', 'PGUSER=root', 'PGDATABASE=postgres',
                          'sh', '-c', line.removeprefix(cls.prefix))

    @staticmethod
    def url(server, url):
        return url.replace('@controller/', '@/') + f'?host={server.home}'


@pytest.fixture(params=[OnMariaDB, OnPostgreSQL], ids=lambda on: on.__name__)
def on(request):
    return request.param


@pytest.fixture
def server(on):
    """One whose users have to give their passwords."""
    made = on.kind()
    if on is OnPostgreSQL:
        with open(f'{made.home}/data/pg_hba.conf', 'w') as stream:
            stream.write('local all root trust\nlocal all all scram-sha-256\n')
        made.sql('SELECT pg_reload_conf()')
    yield made
    made.remove()


def test_the_pages_commands(on, server, directory):
    create, grant, *taken_out = re.findall(rf'^ +({re.escape(on.prefix)}.*)$', PAGE, re.M)
    url, = re.findall(rf'^ +connection = ({re.escape(on.scheme)}:.*)$', PAGE, re.M)
    sync, = re.findall(r'^ +/opt/bootcache/bin/bootcache-manage (db sync)$', PAGE, re.M)
    os.makedirs(f'{directory}/state')
    with open(f'{directory}/bootcache.conf', 'w') as stream:
        stream.write(f'[bootcache]\nstate_dir = {directory}/state\n'
                     f'[database]\nconnection = {on.url(server, url)}\n')

    def manage(*arguments):
        argv, options = command(MANAGE, directory, '--config-file',
                                f'{directory}/bootcache.conf', *arguments)
        return subprocess.run(argv, capture_output=True, check=False, **options)

    for line in create, grant:
        on.run(server, line)
    done = manage(*sync.split())
    assert done.returncode == 0, done.stderr
    assert 'has schema' in done.stdout
    for line in taken_out:
        on.run(server, line)
    done = manage('db', 'version')
    assert done.returncode == 1 and 'refuses' in done.stderr
