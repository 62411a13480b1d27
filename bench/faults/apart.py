"""Namespaces of its own for the program that tries faults.

What it starts ends with it, whatever becomes of it, and its networks' names are nobody else's: two
of them may run beside each other, also in other namespaces of processes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

# Told by the outer process to the inner one; nobody else has a reason to.
_INSIDE = '--apart'
# The shell is the first process of the namespace: it stays, and waits for orphans too. libvirt's
# locks of terminals name processes by their numbers, which mean nothing in another namespace.
_COMMAND = ('setpriv', '--pdeathsig', 'KILL', 'unshare', '--mount', '--pid', '--fork',
            '--kill-child=KILL', '--mount-proc', '--propagation', 'private', 'sh', '-c',
            'mkdir -p /run/netns && mount -t tmpfs netns /run/netns'
            ' && mount -t tmpfs locks "$(readlink -f /var/lock)" && "$@"; exit $?', 'sh')


def is_inside(arguments: list[str]) -> bool:
    """Tell whether this process is the inner one; takes the word that says so out."""
    if arguments[:1] != [_INSIDE]:
        return False
    del arguments[0]
    return True


def run(module: str, arguments: Sequence[str]) -> int:
    """Run a module again, apart from all else; its exit status.

    It is asked to end as this process is, by SIGINT and SIGTERM, and killed if this one is.
    """
    process = subprocess.Popen([*_COMMAND, sys.executable, '-W', 'ignore', '-m', module, _INSIDE,
                                *arguments], start_new_session=True)

    def end(_number: int, _frame: FrameType | None) -> None:
        os.killpg(process.pid, signal.SIGTERM)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
