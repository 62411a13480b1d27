"""A node of devstack: stand-ins for devstack's functions, which write down how they were called."""

import getpass
import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
PLUGIN = TOP / 'devstack' / 'plugin.sh'
SETTINGS = TOP / 'devstack' / 'settings'

STAND_INS = r"""
set -eu
record() { local IFS='|'; echo "$*" >>"$LOG"; }
for name in define_plugin pip_install setup_develop run_process stop_process install_package \
            setup_logging create_service_user echo_summary; do
    eval "$name() { record $name \"\$@\"; }"
done
sudo() { record sudo "$@"; "$@"; }
die() { record die "$@"; exit 3; }
enable_service() { record enable_service "$@"; ENABLED=$ENABLED,$1; }
is_service_enabled() { [[ ",$ENABLED," == *",$1,"* ]]; }
is_ubuntu() { [[ $DISTRIBUTION == debian ]]; }
iniset() { record iniset "$@"; }
iniset_multiline() { record iniset_multiline "$@"; }
iniget() { if [[ $3 == "${INIGET_OPTION:-}" ]]; then echo "$INIGET_VALUE"; fi; }
iniset_rpc_backend() { record iniset "$2" "${3:-DEFAULT}" transport_url rabbit://main/; }
getent() { [[ $1 == group && $2 == "$GUEST_GROUP" ]]; }
get_python_exec_prefix() { echo /usr/local/bin; }
dpkg() { record dpkg "$@"; echo /usr/lib/python3/dist-packages/nbd.py
         echo /usr/lib/python3/dist-packages/libnbdmod.so; echo /usr/share/doc/python3-libnbd; }
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
                          home / 'venv' / 'bin', home / 'run'):
            directory.mkdir(parents=True)
        python = home / 'venv' / 'bin' / 'python'
        python.write_text(f'#!/bin/sh\necho {self.site}\n')
        python.chmod(0o755)
        ca = home / 'venv' / 'bin' / 'bootcache'
        ca.write_text('#!/bin/sh\n(IFS="|"; echo "bootcache|$*" >>"$LOG")\n'
                      f'exec {pathlib.Path(sys.executable).with_name("bootcache")} "$@"\n')
        ca.chmod(0o755)
        # Of a node that was given some.
        self.tls = home / 'pki'
        self.tls.mkdir()
        (self.tls / 'ca-cert.pem').write_text('')
        self.environment = {
            'PATH': os.environ['PATH'], 'LOG': str(self.log), 'ENABLED': services,
            'DISTRIBUTION': 'debian', 'GUEST_GROUP': 'libvirt-qemu', 'GLOBAL_VENV': 'True',
            'DEVSTACK_VENV': str(home / 'venv'), 'DEST': str(home), 'DATA_DIR': str(home / 'data'),
            'BOOTCACHE_DIR': str(self.source),
            'BOOTCACHE_CONF_DIR': str(home / 'etc' / 'bootcache'),
            'BOOTCACHE_RUN_DIR': str(home / 'run'),
            'BOOTCACHE_GATEWAY_SOCKET': str(home / 'run' / 'gateway.sock'),
            'BOOTCACHE_TLS_DIRECTORY': str(self.tls),
            'HOST_IP': '192.0.2.7', 'STACK_USER': getpass.getuser(),
            'ENABLE_DEBUG_LOG_LEVEL': 'True', 'KEYSTONE_SERVICE_URI': 'http://192.0.2.1/identity',
            'SERVICE_PASSWORD': 'secret', 'SERVICE_DOMAIN_NAME': 'Default',
            'SERVICE_PROJECT_NAME': 'service', 'REGION_NAME': 'RegionOne',
            'GLANCE_IMAGE_DIR': str(home / 'images'), 'GLANCE_API_CONF': 'glance-api.conf',
            'GLANCE_IMAGE_IMPORT_CONF': 'glance-image-import.conf', 'NOVA_CONF': 'nova.conf',
            'NOVA_CPU_CONF': str(home / 'etc' / 'nova-cpu.conf'), 'NOVA_DIR': str(home / 'nova'),
            'NOVA_INSTANCES_PATH': str(home / 'instances'), **environment}

    def run(self, *phase: str, check: bool = True) -> list[list[str]]:
        """Run a phase; return the calls as lists of words."""
        self.log.write_text('')
        script = f'{STAND_INS}\n. {SETTINGS}\n. {PLUGIN} "$@"\n'
        done = subprocess.run(['bash', '-c', script, 'bash', *phase], env=self.environment,
                              capture_output=True, text=True, timeout=60)
        if check:
            assert done.returncode == 0, done.stderr
        return [line.split('|') for line in self.log.read_text().splitlines()]


def settings_of(calls: list[list[str]], name: str) -> dict[tuple[str, str], str]:
    """Return what was set in the files with a name."""
    return {(call[2], call[3]): call[4] for call in calls
            if call[0] == 'iniset' and call[1].endswith(name)}


def names(calls: list[list[str]], command: str) -> list[str]:
    """Return the first arguments of a command's calls."""
    return [call[1] for call in calls if call[0] == command]


ALL = 'g-api,n-api,n-cpu,key'
