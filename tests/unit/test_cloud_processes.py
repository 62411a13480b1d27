"""Processes as the test cloud sees them."""

import subprocess
import sys

from tools.cloud.processes import process_info

# Its first thread ends, by the system call of that thread alone; the other one reads until the end.
TWO_THREADS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print('ready', flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""


def test_a_process_runs_until_its_last_thread_has_ended():
    process = subprocess.Popen([sys.executable, '-c', TWO_THREADS], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    assert process.stdout.readline() == b'ready\n'
    while (info := process_info(process.pid)).state != 'Z':
        pass
    assert info.alive
    process.stdin.close()
    while (info := process_info(process.pid)).threads > 1:
        pass
    assert info.state == 'Z' and not info.alive
    process.wait()
    process.stdout.close()
    assert process_info(process.pid) is None
