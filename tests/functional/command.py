"""Runs the commands ``bootcache`` and ``glance-bootcache`` of this tree as processes of their own.

The commands that are installed may be of another tree.
"""

import os
import subprocess
import sys
from pathlib import Path

from tools.tree import as_installed

TOP = Path(__file__).resolve().parents[2]
BOOTCACHE = '''
import importlib, sys, tomllib
from glance_bootcache.cli import main
known = tomllib.load(open('pyproject.toml', 'rb'))['project']['entry-points']['bootcache.cli']
def load(manager, namespace):
    for name, where in known.items():
        module, _, command = where.partition(':')
        manager.add_command(name.replace('_', ' '),
                            getattr(importlib.import_module(module), command))
main.commandmanager.CommandManager.load_commands = load
sys.exit(main.main(sys.argv[1:]))
'''
SERVICE = '''
import sys
from glance_bootcache.cli import service
sys.exit(service.main(sys.argv[1:]))
'''


def command(program, home, *arguments):
    """Return arguments and options of ``subprocess`` for a program of this tree.

    :param program: BOOTCACHE or SERVICE.
    :param home: for HOME and temporary files.
    """
    return ([sys.executable, '-W', 'ignore', '-c', program, *map(str, arguments)],
            {'stdin': subprocess.DEVNULL, 'cwd': TOP, 'text': True,
             'env': {'PATH': os.environ['PATH'], 'HOME': str(home), 'TMPDIR': str(home),
                     'PYTHONPATH': as_installed(f'{home}/tree')}})


def bootcache(home, *arguments):
    """Run ``bootcache`` to its end."""
    argv, options = command(BOOTCACHE, home, *arguments)
    return subprocess.run(argv, capture_output=True, check=False, timeout=300, **options)
