"""Prometheus's own tool tests the alerts: etc/prometheus/bootcache.rules.yml."""

import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
RULES = TOP / 'etc' / 'prometheus' / 'bootcache.rules.yml'

pytestmark = pytest.mark.skipif(shutil.which('promtool') is None,
                                reason='promtool (Debian\'s prometheus) is not installed')


def promtool(*arguments):
    done = subprocess.run(['promtool', *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_right():
    promtool('check', 'rules', str(RULES))


def test_they_alert_of_what_they_are_for_and_of_nothing_else(tmp_path):
    cases = tmp_path / 'alerts.yml'
    cases.write_text((Path(__file__).parent / 'alerts.yml').read_text().replace(
        'rule_files: [RULES]', f'rule_files: [{RULES}]'))
    promtool('test', 'rules', str(cases))
