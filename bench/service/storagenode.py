"""A storage node of the benchmark: a real glance-bootcache with what is its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from tools.ports import free_port

TOP = Path(__file__).resolve().parents[2]
_END_SECONDS = 60.0


class StorageNode:
    """A service whose name, directories, ports and exporter no other one has; it is not started.

    :ivar name: ``[DEFAULT]host``.

    :param home: a short directory; what is the node's own is in a directory of its name there.
    :param sections: of the configuration, what all nodes have in common.
    """

    def __init__(self, home: str, name: str, sections: Mapping[str, Mapping[str, object]]):
        self.name, self._home = name, Path(home, name)
        self._process: subprocess.Popen[bytes] | None = None
        self._home.mkdir()
        own: dict[str, dict[str, object]] = {
            'DEFAULT': {'host': name},
            'bootcache': {'state_dir': self._home / 'state', 'run_dir': self._home / 'run',
                          'export_host': '127.0.0.1', 'export_port': free_port()}}
        self._file.write_text(''.join(
            f'[{section}]\n' + ''.join(
                f'{key} = {value}\n'
                for key, value in {**entries, **own.get(section, {})}.items())
            for section, entries in sections.items()))

    @property
    def _file(self) -> Path:
        return self._home / 'bootcache.conf'

    def begin(self) -> None:
        """Start the process; nobody waits until it answers."""
        with open(self._home / 'log', 'ab') as log:
            self._process = subprocess.Popen(
                [sys.executable, '-W', 'ignore', '-m', 'glance_bootcache.cli.service',
                 '--config-file', str(self._file)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=TOP,
                env={'PATH': os.environ['PATH'], 'HOME': str(self._home),
                     'TMPDIR': str(self._home),
                     # The processes that the service starts are of this tree, too.
                     'PYTHONPATH': str(TOP)})

    def has_ended(self) -> bool:
        """Return whether the process was started, and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def signal_end(self) -> None:
        """Ask the process to end; its exporter stays, as servers may read from that."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def await_end(self) -> None:
        """Wait until the process has ended, and kill it if that takes too long."""
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def end_exporters(self) -> list[psutil.Process]:
        """Ask the node's exporters to end; return them."""
        found = []
        for file in (self._home / 'run').glob('*.pid'):
            try:
                found.append(psutil.Process(int(file.read_text())))
                found[-1].terminate()
            except (ValueError, psutil.NoSuchProcess):
                continue
        return found

    @property
    def log(self) -> str:
        """What the service has logged."""
        return (self._home / 'log').read_text(errors='replace')

    @property
    def process(self) -> psutil.Process:
        """The service's process, which was started."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def peak_bytes(self) -> int:
        """Return the most memory that the service's process had since it started."""
        text = Path(f'/proc/{self.process.pid}/status').read_text()
        return int(re.findall(r'VmHWM:\s+(\d+) kB', text)[0]) * 1024
