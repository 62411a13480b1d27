"""A node of devstack: stand-ins for devstack's functions, which write down how they were called."""

import getpass
import os
import pathlib
import re
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = TOP / 'devstack' / 'plugin.sh'
SETTINGS = TOP / 'devstack' / 'settings'

STAND_INS = r"""
set -eu
record() { local IFS='|'; echo "$*" >>"$LOG"; }
for name in define_plugin pip_install setup_develop run_process stop_process stop_nova_compute \
            setup_logging create_service_user echo_summary systemctl; do
    eval "$name() { record $name \"\$@\"; }"
done
SYSTEMCTL=systemctl
sudo() { record sudo "$@"; "$@"; }
die() { record die "$@"; exit 3; }
enable_service() { record enable_service "$@"; ENABLED=$ENABLED,$1; }
# Several names: whether one of them is.
is_service_enabled() { local name; for name in "$@"; do
    if [[ ",$ENABLED," == *",$name,"* ]]; then return 0; fi; done; return 1; }
is_ubuntu() { [[ $DISTRIBUTION == debian ]]; }
# devstack's own task writes nova.conf in the background until it is waited for.
WRITING=configure_neutron_nova
async_wait() { record async_wait "$@"; WRITING=${WRITING/$1/}; }
iniset() { record iniset "$@"
    if [[ -n $WRITING && $1 == "$NOVA_CONF" ]]; then record raced "$@"; fi; }
iniset_multiline() { record iniset_multiline "$@"
    if [[ -n $WRITING && $1 == "$NOVA_CONF" ]]; then record raced "$@"; fi; }
iniget() {
    local known="${INI:-};${INIGET_OPTION:-}=${INIGET_VALUE:-}"
    if [[ ";$known" == *";$2/$3="* ]]; then known=${known##*"$2/$3="}; echo "${known%%;*}"
    elif [[ $3 == "${INIGET_OPTION:-}" ]]; then echo "$INIGET_VALUE"; fi; }
iniset_rpc_backend() { iniset "$2" "${3:-DEFAULT}" transport_url rabbit://main/; }
openstack() { record openstack "$@"; [[ "$2" != show || -n "${HAS_FLAVOR:-}" ]]; }
getent() { [[ $1 == group && $2 == "$GUEST_GROUP" ]]; }
get_python_exec_prefix() { echo /usr/local/bin; }
"""


class Devstack:
    """A node with some services."""

    def __init__(self, home: pathlib.Path, services: str, **environment: str):
        self.home = home
        self.log = home / 'log'
        self.nova = home / 'nova' / 'nova' / 'virt'
        self.site = home / 'venv' / 'site-packages'
        # Not this tree: a wrong link must not end up in it.
        self.source = home / 'bootcache'
        for directory in (self.nova, self.source / 'nova_bootcache' / 'shim',
                          self.site / 'nova' / 'virt' / 'bootcache', home / 'etc',
                          home / 'venv' / 'bin', home / 'run', home / 'systemd',
                          self.source / 'etc'):
            directory.mkdir(parents=True)
        shutil.copytree(TOP / 'etc' / 'systemd', self.source / 'etc' / 'systemd')
        python = home / 'venv' / 'bin' / 'python'
        python.write_text(f'#!/bin/sh\necho {self.site}\n')
        python.chmod(0o755)
        ca = home / 'venv' / 'bin' / 'bootcache'
        ca.write_text('#!/bin/sh\n(IFS="|"; echo "bootcache|$*" >>"$LOG")\n'
                      '[ "$1" = ca ] || exec sh -c "${ANSWER:-true}"\n'
                      f'exec {pathlib.Path(sys.executable).with_name("bootcache")} "$@"\n')
        ca.chmod(0o755)
        self.ca = home / 'data' / 'CA' / 'bootcache'
        self.environment = {
            'PATH': os.environ['PATH'], 'LOG': str(self.log), 'ENABLED': services,
            'DISTRIBUTION': 'debian', 'GUEST_GROUP': 'libvirt-qemu', 'GLOBAL_VENV': 'True',
            'DEVSTACK_VENV': str(home / 'venv'), 'DEST': str(home), 'DATA_DIR': str(home / 'data'),
            'BOOTCACHE_DIR': str(self.source),
            'BOOTCACHE_CONF_DIR': str(home / 'etc' / 'bootcache'),
            'BOOTCACHE_APPARMOR_RULES': str(home / 'apparmor' / 'libvirt-qemu'),
            'SYSTEMD_DIR': str(home / 'systemd'), 'VIRT_DRIVER': 'libvirt', 'LIBVIRT_TYPE': 'kvm',
            'DATABASE_BACKENDS': 'postgresql mysql', 'HOST_IP': '192.0.2.7',
            'STACK_USER': getpass.getuser(), 'SERVICE_TIMEOUT': '3',
            'ENABLE_DEBUG_LOG_LEVEL': 'True', 'KEYSTONE_SERVICE_URI': 'http://192.0.2.1/identity',
            'SERVICE_PASSWORD': 'secret', 'SERVICE_DOMAIN_NAME': 'Default',
            'SERVICE_PROJECT_NAME': 'service', 'REGION_NAME': 'RegionOne',
            'GLANCE_IMAGE_DIR': str(home / 'never'), 'GLANCE_API_CONF': 'glance-api.conf',
            'GLANCE_IMAGE_IMPORT_CONF': 'glance-image-import.conf', 'NOVA_CONF': 'nova.conf',
            'NOVA_CPU_CONF': str(home / 'etc' / 'nova-cpu.conf'), 'NOVA_DIR': str(home / 'nova'),
            'NOVA_INSTANCES_PATH': str(home / 'instances'), **environment}

    def run(self, *phase: str, check: bool = True) -> list[list[str]]:
        """Run a phase; return the calls as lists of words."""
        self.log.write_text('')
        # What systemd makes of a unit's RuntimeDirectory is not a test's to touch.
        script = (f'{STAND_INS}\n. {SETTINGS}\nBOOTCACHE_SERVICE_RUN_DIR={self.home}/run\n'
                  f'BOOTCACHE_GATEWAY_SOCKET={self.home}/gateway/gateway.sock\n. {PLUGIN} "$@"\n')
        done = subprocess.run(['bash', '-c', script, 'bash', *phase], env=self.environment,
                              capture_output=True, text=True, timeout=60)
        calls = [line.split('|') for line in self.log.read_text().splitlines()]
        if check:
            assert done.returncode == 0, done.stderr
            assert not [call for call in calls if call[0] == 'raced']
        return calls

    def unit(self, service: str) -> dict[str, str]:
        """Return the last value of each setting of a service's unit."""
        lines = (self.home / 'systemd' / f'devstack@{service}.service').read_text().splitlines()
        return dict(line.split('=', 1) for line in lines if re.match('[A-Z][A-Za-z]+=', line))


def settings_of(calls: list[list[str]], name: str) -> dict[tuple[str, str], str]:
    """Return what was set in the files with a name."""
    return {(call[2], call[3]): call[4] for call in calls
            if call[0] == 'iniset' and call[1].endswith(name)}


def names(calls: list[list[str]], command: str) -> list[str]:
    """Return the first arguments of a command's calls."""
    return [call[1] for call in calls if call[0] == command]


ALL = 'g-api,n-api,n-cpu,key,mysql'
