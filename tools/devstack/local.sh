#!/bin/bash
# devstack's local.sh in the container of tools/devstack.sh: what Nova asks of a network service, by a stub.
set -euo pipefail
cd "$(dirname "$0")"
# devstack's own files ask for variables that are not set, and go on where a command fails.
set +eu
# shellcheck source=/dev/null
. ./openrc admin admin
set -eu
sudo tee /etc/systemd/system/network-stub.service >/dev/null <<UNIT
[Service]
User=stack
ExecStart=/usr/bin/python3 /opt/stack/bootcache/tools/cloud/network_stub.py --port 9696
[Install]
WantedBy=multi-user.target
UNIT
sudo systemctl daemon-reload
sudo systemctl enable --now network-stub
openstack service create --name neutron network
openstack endpoint create --region RegionOne network public http://127.0.0.1:9696
