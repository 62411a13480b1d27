"""A node on which the real stack.sh runs, of ``$DEVSTACK_DIR``.

What it would install, start or ask is written down. In a mount namespace of its own with an overlay
of this machine's root, and a chroot there. Files are really written: devstack's own tools, and its
tasks in the background, are what the plugin meets.
"""

import os
import pathlib
import re
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]
DEVSTACK = os.environ.get('DEVSTACK_DIR')

# What becomes a recorder, and what some of them answer.
RECORDED = [
    'apt-get', 'systemctl', 'mysql', 'mysqladmin', 'rabbitmqctl', 'uwsgi', 'curl', 'a2ensite',
    'a2dissite', 'a2enmod', 'a2enconf', 'iscsi-iname', 'a2dismod', 'apachectl', 'apache2ctl',
    'virsh', 'iptables-save', 'iptables', 'iscsiadm', 'nvme', 'update-ca-certificates',
    'debconf-set-selections', 'journalctl', 'modprobe', 'sysctl', 'service', 'ebtables',
    'conntrack', 'update-rc.d',
]
IN_VENV = [
    'pip', 'bindep', 'edit-constraints', 'openstack', 'nova-manage', 'glance-manage',
    'keystone-manage', 'placement-manage', 'nova-status', 'privsep-helper', 'nova-compute',
    'nova-scheduler', 'nova-conductor',
]

RECORDER = r"""#!/bin/bash
printf '%s %s\n' "${0##*/}" "$*" >>/recorded
case "${0##*/} $*" in
"rabbitmqctl list_users"*) echo stackrabbit ;;
"curl "*"%{http_code}"*) printf 200 ;;
"openstack "*" -f value -c id"* | "openstack "*"-c id -f value"*) echo 0123456789abcdef ;;
"systemctl is-enabled "*) [ -e "/etc/systemd/system/${*: -1}" ] ;;
"openstack "*"compute service list"*) hostname ;;
esac
"""

# "python3 -m venv" makes a folder of recorders; pip is one.
PYTHON = r"""#!/bin/bash
case "$*" in
"-m venv "*)
    # Packages bring some of their configuration.
    mkdir -p "${*: -1}"/bin "${*: -1}"/etc/{glance,cinder}/rootwrap.d
    touch "${*: -1}"/etc/{glance,cinder}/rootwrap.conf
    for name in NAMES; do cp -n /recorder "${*: -1}/bin/$name"; done
    cp -n /usr/bin/python3 "${*: -1}/bin/python3"; cp -n /usr/bin/python3 "${*: -1}/bin/python"
    cp -n /recorded-bootcache "${*: -1}/bin/bootcache"
    ;;
"-m pip "*) printf 'pip %s\n' "${*:3}" >>/recorded ;;
*sysconfig*purelib*) d=${0%/bin/*}/site-packages; mkdir -p "$d"; echo "$d" ;;
*) exec /usr/bin/python3.real "$@" ;;
esac
""".replace('NAMES', ' '.join(IN_VENV))


class Node:
    """One node.

    :param home: of the overlay.
    :param localrc: lines of its local.conf.
    """

    def __init__(self, home: pathlib.Path, localrc: str):
        self.home = home
        self.root = home / 'upper'
        for name in 'upper', 'work', 'merged':
            (home / name).mkdir()
        stack = self.root / 'opt' / 'stack'
        stack.mkdir(parents=True)
        self._programs()
        self._sources(stack)
        (stack / 'devstack' / 'local.conf').write_text(
            '[[local|localrc]]\nHOST_IP=127.0.0.1\nADMIN_PASSWORD=secret\n'
            'DATABASE_PASSWORD=secret\nRABBIT_PASSWORD=secret\nSERVICE_PASSWORD=secret\n'
            'DOWNLOAD_DEFAULT_IMAGES=False\nIMAGE_URLS=\nLOG_COLOR=False\n' + localrc)
        # Who stacks; and this machine may have been a cloud.
        self.run('rm -rf /etc/{keystone,nova,glance,placement,neutron,bootcache};'
                 ' useradd --home-dir /opt/stack --shell /bin/bash stack; chown -R stack:stack'
                 ' /opt/stack; chmod 666 /recorded', user='root')

    def _programs(self) -> None:
        # The folders are packages'.
        for directory in ('usr/bin', 'usr/sbin', 'etc/sudoers.d', 'etc/apache2/sites-available',
                          'etc/apache2/conf-available', 'etc/mysql', 'etc/iscsi', 'etc/libvirt',
                          'etc/bash_completion.d'):
            (self.root / directory).mkdir(parents=True)
        recorder = self.root / 'recorder'
        recorder.write_text(RECORDER)
        recorder.chmod(0o755)
        (self.root / 'recorded').write_text('')
        for name in RECORDED:
            place = shutil.which(name) or f'/usr/bin/{name}'
            target = self.root / 'usr' / ('sbin' if '/sbin/' in place else 'bin') / name
            shutil.copy(recorder, target)
        # devstack calls it by its version.
        real = pathlib.Path('/usr/bin/python3').resolve()
        shutil.copy(real, self.root / 'usr' / 'bin' / 'python3.real')
        for name in 'python3', real.name:
            python = self.root / 'usr' / 'bin' / name
            python.write_text(PYTHON)
            python.chmod(0o755)
        # A stand-in for "bootcache ca", as the project is not installed here.
        ca = self.root / 'recorded-bootcache'
        ca.write_text(RECORDER + '[ "$1" = ca ] || exit 0; host=$2/${3%%,*}; mkdir -p "$host"\n'
                      'touch "$2/ca-key.pem" "$host/ca-cert.pem"\n')
        ca.chmod(0o755)
        (self.root / 'etc' / 'sudoers.d' / 'stack').write_text('stack ALL=(ALL) NOPASSWD: ALL\n')
        (self.root / 'etc' / 'hosts').write_text('127.0.0.1 localhost devstack\n')

    def _sources(self, stack: pathlib.Path) -> None:
        shutil.copytree(str(DEVSTACK), stack / 'devstack', symlinks=True,
                        ignore=shutil.ignore_patterns('.git'))
        files = {
            'requirements': ['upper-constraints.txt', 'global-requirements.txt'],
            'keystone': [], 'placement': [], 'neutron': [],
            'glance': ['etc/glance-api-paste.ini', 'etc/schema-image.json', 'etc/metadefs/a.json'],
            'nova': ['etc/nova/api-paste.ini', 'etc/nova/rootwrap.conf',
                     'etc/nova/rootwrap.d/compute.filters', 'nova/virt/__init__.py',
                     'tools/nova-manage.bash_completion']}
        # What devstack asks to be in there.
        asked = subprocess.run(
            ['grep', '-rhoE', 'pip_install_gr(_extras)? +[A-Za-z][A-Za-z0-9._-]+',
             str(stack / 'devstack')], capture_output=True, text=True).stdout
        names = ''.join(f'{name}>=0\n' for name in {
            'PyMySQL', *(line.split()[1] for line in asked.splitlines())})
        for name, paths in files.items():
            (stack / name).mkdir()
            for path in [*paths, 'setup.cfg']:
                (stack / name / path).parent.mkdir(parents=True, exist_ok=True)
                (stack / name / path).write_text(f'[metadata]\nname = {name}\n')
            if name == 'requirements':
                (stack / name / 'global-requirements.txt').write_text(names)
            self._commit(stack / name, 'master')
        plugin = stack / 'repos' / 'bootcache'
        for name in 'devstack', 'etc', 'nova_bootcache/shim':
            shutil.copytree(TOP / name, plugin / name)
        self._commit(plugin, 'main')

    def _commit(self, directory: pathlib.Path, branch: str) -> None:
        git = ['git', '-C', str(directory), '-c', 'user.name=x', '-c', 'user.email=x@localhost']
        subprocess.run([*git, 'init', '-q', '-b', branch], check=True)
        subprocess.run([*git, 'add', '-A'], check=True)
        subprocess.run([*git, 'commit', '-q', '--allow-empty', '-m', 'x'], check=True)

    def run(self, script: str, user: str = 'stack') -> subprocess.CompletedProcess[str]:
        """Run a script of bash on the node."""
        merged = self.home / 'merged'
        outer = (f'mount -t overlay overlay -o lowerdir=/,upperdir={self.root},'
                 f'workdir={self.home}/work {merged} && mount --bind /dev {merged}/dev &&'
                 f' mount -t tmpfs run {merged}/run && mount -t proc proc {merged}/proc &&'
                 f' exec chroot {merged} runuser -u {user} -- env -i HOME=/opt/stack USER={user}'
                 ' LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
                 ' bash -c "$0"')
        return subprocess.run(['unshare', '--mount', '--pid', '--fork', '--kill-child', '--uts',
                               'sh', '-c', 'hostname devstack; ' + outer, script],
                              capture_output=True, text=True, timeout=600)

    def stack(self, script: str = './stack.sh') -> str:
        """Run stack.sh, or another script of devstack; its output."""
        done = self.run(f'cd /opt/stack/devstack && {script} 2>&1')
        (self.home / 'output').write_text(done.stdout)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def recorded(self) -> list[str]:
        """Return what was recorded, a command a line."""
        return (self.root / 'recorded').read_text().splitlines()

    def settings(self, path: str) -> dict[tuple[str, str], str]:
        """Return the settings of an INI file on the node."""
        section, found = '', {}
        for line in (self.root / path).read_text().splitlines():
            if match := re.fullmatch(r'\[(.*)\]', line):
                section = match[1]
            elif ' = ' in line:
                name, value = line.split(' = ', 1)
                found[section, name] = value
        return found
