"""OpenStack's libraries as tools/constraints.txt has them, in OpenStack's requirements.

These may be older than what the services of tools/constraints.txt ask for. Packages of others keep
their versions, which fit each other.
usage: pins.py OURS UPPER_CONSTRAINTS
"""

import pathlib
import re
import sys

_OPENSTACK = re.compile(
    'automaton|castellan|cliff|cursive|debtcollector|futurist|glance-store|keystone|microversion|'
    'openstack|os-|osc-|oslo|pbr|pycadf|python-.*client$|stevedore|taskflow|tooz')


def _name(line: str) -> str:
    return re.sub('[-_.]+', '-', re.split('[=;]', line)[0]).lower()


def main(ours: str, theirs: str) -> None:
    """Rewrite a file of upper constraints."""
    pins = {_name(line): line.split('==')[1].split(';')[0].strip()
            for line in pathlib.Path(ours).read_text().splitlines()
            if '==' in line and _OPENSTACK.match(_name(line))}
    path = pathlib.Path(theirs)
    lines = [re.sub('===[^;]+', f'==={pins[_name(line)]}', line) if _name(line) in pins else line
             for line in path.read_text().splitlines()]
    path.write_text('\n'.join([*lines, '']))


if __name__ == '__main__':
    main(*sys.argv[1:])
