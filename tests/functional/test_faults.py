"""The short run of tools/faults.sh: something goes wrong at each step, and comes to nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults import nodeplan, plan
from bootcache import steps

TOP = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='network namespaces are made by root')


def test_the_short_run_has_the_zeros(tmp_path):
    done = subprocess.run([sys.executable, '-W', 'ignore', '-m', 'bench.faults', '--quick',
                           '--report', str(tmp_path)], cwd=TOP, check=False, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True)
    told = f'{done.stdout}{done.stderr}\nThe logs are in {tmp_path}.'
    assert done.returncode == 0, told
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['summary'] == {'runs': len(plan.quick()), 'failed_boots': 0, 'guest_errors': 0,
                                 'wrong_bytes': 0, 'leftovers': 0}, told
    assert all(run['ok'] and not run['unreached'] for run in report['runs']), told
    struck = {strike.step for row in plan.quick() for strike in row.strikes}
    assert struck | nodeplan.STEPS.keys() >= {step.name for step in steps.TABLE}
