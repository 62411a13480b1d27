"""A short run of the fuzzers: tools/fuzz.sh has the long ones."""

import importlib.util
import os
import subprocess
import sys

import pytest

from bench import fuzz

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_mutated_files_are_accepted_or_refused_and_leave_nothing():
    report = fuzz.run(runs=60, seed=3, workers=2, seconds=600)
    assert report['runs'] == report['accepted'] + report['refused'] == 60, report
    assert not report['to be looked at'] and not report['left behind']
    assert report['accepted'] and len(report['reasons']) > 10
    assert report['most memory'] < 256 << 20


def test_a_file_follows_from_its_seed_and_number(directory):
    bases = fuzz.make_bases(directory)
    contents = []
    for seed, number in ((1, 5), (1, 5), (2, 5), (1, 6)):
        fuzz.make(bases, seed, number, f'{directory}/made')
        with open(f'{directory}/made', 'rb') as stream:
            contents.append(stream.read())
    assert contents[0] == contents[1] and len(set(contents)) == 3


def test_what_is_not_as_it_should_be_is_told():
    outcomes = [fuzz.Outcome(0, fuzz.ACCEPTED, '', 1.0),
                fuzz.Outcome(1, fuzz.REFUSED, 'L1 at 7', 2.0),
                fuzz.Outcome(2, fuzz.CRASHED, 'exit -11', 0.5)]
    report = fuzz.summary(outcomes, 5, 0)
    assert report['reasons'] == {'LN at N': 1} and report['slowest']['number'] == 1
    assert [one['number'] for one in report['to be looked at']] == [2]


@pytest.mark.skipif(importlib.util.find_spec('atheris') is None, reason='atheris is not installed')
def test_coverage_guided_fuzzing_of_the_parsers_finds_nothing(directory):
    # Whoever starts it may have had more memory than a parser may take.
    starter = ("import subprocess, sys; len(b'x' * (1100 << 20));"
               "sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))")
    done = subprocess.run([sys.executable, '-c', starter,
                           '-W', 'ignore', '-m', 'bench.fuzzparsers', '5'],
                          cwd=directory, env={**os.environ, 'PYTHONPATH': TOP}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'number_of_executed_units' in done.stderr
    assert os.listdir(directory) == [], 'a file that a parser did not stand'
