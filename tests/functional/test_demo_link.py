"""What the demo does to loopback, in a network namespace of the test's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.demo import link

TOP = Path(__file__).resolve().parents[2]


def inside(script):
    """Run Python in a network namespace of its own; what it prints, read as JSON."""
    done = subprocess.run(
        ['unshare', '--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh', sys.executable,
         '-c', f'import json, subprocess\nfrom tools.demo import link\n{script}'], cwd=TOP,
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_the_ports_are_held_and_only_as_long_as_it_is_wanted():
    before, during, filters, after = inside('''
def show(what):
    return subprocess.run(['tc', what, 'show', 'dev', 'lo'], check=True, text=True,
                          capture_output=True).stdout
before = show('qdisc')
with link.shaped(1000, [[9292, 10811], [6800]], stays=False):
    during, filters = show('class'), show('filter').count('flowid')
print(json.dumps([before, during, filters, show('qdisc')]))''')
    assert during.count('rate 1Gbit') == 2 and filters == 3
    assert before == after


def test_what_a_killed_demo_left_is_replaced_and_removed():
    left, again, gone = inside('''
def handles():
    return [one['handle'] for one in link._qdiscs()]
with link.shaped(100, [[9292]], stays=True):
    pass
left = handles()
with link.shaped(None, [[9292]], stays=False):
    again = handles()
with link.shaped(100, [[9292]], stays=True):
    pass
assert link.main() == 0
print(json.dumps([left, again, handles()]))''')
    assert left == [link.HANDLE] and again == gone == ['0:']


def test_somebody_elses_is_left_alone():
    why, kinds = inside('''
subprocess.run('tc qdisc add dev lo root handle 5: htb'.split(), check=True)
try:
    with link.shaped(100, [[9292]], stays=False):
        why = 'shaped'
except link.LinkError as error:
    why = str(error)
print(json.dumps([why, [one['kind'] for one in link._qdiscs()]]))''')
    assert 'htb' in why and '--link none' in why and kinds == ['htb']


@pytest.mark.parametrize(('text', 'mbit'), [('none', None), ('1000', 1000), ('1', 1)])
def test_a_rate(text, mbit):
    assert link.parse(text) == mbit


@pytest.mark.parametrize('text', ['', '0', '-1', '1.5', '1e3', '100001', 'fast', '1g'])
def test_what_is_no_rate(text):
    with pytest.raises(ValueError, match='neither none nor'):
        link.parse(text)
