"""One stock qemu-storage-daemon, started or adopted, and steered over QMP.

It outlives the service that started it: a new service process finds it by its monitor socket and
goes on with it. What is known of its faults (version 7.2) shapes this module and monitor.py: the
listening socket is made here with TCP_NODELAY, and no iothreads are used.
"""

import contextlib
import dataclasses
import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from typing import Any

from oslo_log import log as logging

from bootcache import errorlog, exception, filelocks, listening, naming, tls
from bootcache.monitor import Monitor, Session
from bootcache.util.backoff import CircuitBreaker

LOG = logging.getLogger(__name__)

_COMMAND_SECONDS, _START_SECONDS, _GONE_SECONDS = 30, 20, 10
_STARTS = 3
# QEMU 7.2 has been seen to crash at its monitor's first client.
_CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
_BACKLOG = 1024
# Seconds without a word before a client is asked, between questions, and how many have no answer.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
# QEMU's words for an export that nobody serves.
_NOT_SERVED = 'Requested export not available'


@dataclasses.dataclass(frozen=True)
class UnixListener:
    """NBD is served on a unix socket.

    :ivar path: of the socket; at most 107 bytes.
    """

    path: str

    def __str__(self) -> str:
        return self.path


@dataclasses.dataclass(frozen=True)
class TcpListener:
    """NBD is served on a TCP port.

    :ivar host: address to listen on.
    :ivar port: TCP port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return naming.tcp_address(self.host, self.port)


class StorageDaemon:
    """A qemu-storage-daemon with its own directory for monitor socket, pid file and log.

    :ivar monitor: where it is steered.
    :ivar answers: ``Monitor.answers``, and ``session``: ``Monitor.session``.

    :param name: for messages and file names, for instance ``exporter``.
    :param directory: made if missing; short, as unix socket paths end at 107 bytes.
    :param listener: where NBD is served.
    :param binary: the program.
    :param autostart: whether ``ensure_running`` may start it, or only adopt it.
    :param group: that may connect to its NBD socket; None for the process's own. Nobody else may,
        and nobody but the daemon's user may reach its monitor.
    :param patience: of its monitor: see there, also for the next three.
    :param trace: an event of QEMU's that it writes into its log, or a file: see errorlog.py.
    :param admission: who is let in by TLS, of one that it starts; None for anybody, without TLS.
    """

    def __init__(self, name: str, directory: str, listener: UnixListener | TcpListener,
                 binary: str = 'qemu-storage-daemon', autostart: bool = True,
                 group: str | None = None, patience: float = _COMMAND_SECONDS,
                 command_seconds: float = _COMMAND_SECONDS, queue_seconds: float = 0,
                 breaker: CircuitBreaker | None = None, trace: str | None = None,
                 admission: tls.Admission | None = None):
        self.name = name
        self.directory = directory
        self.listener = listener
        self._binary = binary
        # Of one that nobody but systemd starts.
        self._cure = '' if autostart else f'start bootcache-{name}.service'
        self._group = group
        self._trace = trace
        self._admission = admission
        self.monitor_path = os.path.join(directory, f'{name}.qmp')
        self.pid_path = os.path.join(directory, f'{name}.pid')
        self.log_path = os.path.join(directory, f'{name}.log')
        # On the command line it tells where a daemon listens, which QMP does not.
        self._monitor_id = 'monitor' if isinstance(listener, UnixListener) \
            else re.sub('[^0-9A-Za-z.-]', '_', f'monitor-{listener}')
        # To have it alone guards starting as well.
        self.monitor = Monitor(name, self.monitor_path, patience, command_seconds, breaker,
                               self._cure, queue_seconds)
        self.answers, self.session = self.monitor.answers, self.monitor.session

    def ensure_running(self) -> bool:
        """Adopt the daemon if it answers, else start it.

        :returns: True if it was started, and so is empty.
        :raises StorageDaemonError: if it does not come up.
        """
        with self.monitor.alone():
            if self.answers():
                return False
            if self.runs and os.path.exists(self.monitor_path):
                # Whoever reads through it shall not suffer for a monitor that is busy.
                raise exception.StorageDaemonBusy(
                    f'{self.name}: pid {self.pid() or "of another namespace"} runs, but does not'
                    f' answer on {self.monitor_path}; it is left alone. A disk may hang, or another'
                    ' client has the monitor open.')
            if self._cure:
                raise exception.StorageDaemonError(
                    f'{self.name}: nothing answers on {self.monitor_path}; {self._cure}')
            self.stop()
            self._check_listener()
            # The one that may have hung is gone.
            self.monitor.heard()
            self._start()
            return True

    def _check_length(self, path: str) -> None:
        if len(os.fsencode(path)) > listening.PATH_BYTES:
            raise exception.StorageDaemonError(
                f'{self.name}: the socket path {path} is longer than'
                f' {listening.PATH_BYTES} bytes; choose a shorter directory')

    def _listen(self, admission: str) -> tuple[list[str], list[int]]:
        self._check_length(self.monitor_path)
        if isinstance(self.listener, UnixListener):
            self._check_length(self.listener.path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.listener.path)
            address = f'addr.type=unix,addr.path={self.listener.path}'
            return ['--nbd-server', f'{address},max-connections=0{admission}'], []
        server = listening.listen(self.listener.host, self.listener.port, _BACKLOG)
        # Accepted sockets inherit it; without it each answer may wait 40 ms for an acknowledgement.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client whose last packets were lost would be there for hours, and keep its export.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            server.setsockopt(socket.IPPROTO_TCP, option, value)
        fd = server.detach()
        return ['--nbd-server', f'addr.type=fd,addr.str={fd},max-connections=0{admission}'], [fd]

    def _start(self) -> None:
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        for _attempt in range(_STARTS):
            process = self._launch()
            if self._comes_up(process):
                self._open_socket()
                LOG.info('%s: started %s, pid %d', self.name, self._binary, process.pid)
                return
            # One that hangs is not left behind: nobody would know it.
            while (ended := process.poll()) is None:
                process.kill()
                time.sleep(0.02)
            if self._trace and errorlog.lacks_events(self.log_path):
                self._trace = None
            elif ended not in _CRASHES:
                break
            else:
                LOG.warning('%s: it crashed (signal %d), and is started again', self.name, -ended)
        raise exception.StorageDaemonError(
            f'{self.name}: {self._binary} did not come up; see {self.log_path}')

    def _launch(self) -> subprocess.Popen[bytes]:
        for path in (self.monitor_path, self.pid_path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        try:
            objects, admission = self._admission.arguments() if self._admission else ([], '')
        except exception.ConfigurationError as error:  # It was right before, and passes.
            raise exception.StorageDaemonError(f'{self.name}: {error}') from error
        try:
            nbd, fds = self._listen(admission)
        except OSError as error:
            who = ''
            if isinstance(self.listener, TcpListener):
                who = (('; "ss -ltnp" shows who does: end that, or' if error.errno
                        == errno.EADDRINUSE else ';') + ' see [bootcache]export_host, export_port'
                       ' and export_ports')
            raise exception.StorageDaemonError(
                f'{self.name}: cannot listen on {self.listener} ({error.strerror or error}){who}'
            ) from error
        command = [self._binary,
                   '--chardev', f'socket,path={self.monitor_path},server=on,wait=off,'
                   f'id={self._monitor_id}', '--monitor', f'chardev={self._monitor_id}',
                   '--pidfile', self.pid_path,
                   *objects, *nbd, *(['--trace', self._trace] if self._trace else [])]
        try:
            with open(self.log_path, 'ab') as log:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log, pass_fds=fds, start_new_session=True,
                                           umask=0o077)
        except OSError as error:
            raise exception.StorageDaemonError(
                f'{self.name}: cannot start {self._binary}: {error}') from error
        finally:
            for fd in fds:
                os.close(fd)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            # It has some open for each base and client. It may have ended.
            with contextlib.suppress(OSError):
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        # So that the kernel's table is rid of it when it ends while this process lives.
        threading.Thread(target=process.wait, name=f'{self.name}-reaper', daemon=True).start()
        return process

    def _comes_up(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            # What was heard of another one says nothing of this.
            self.monitor.heard()
            if os.path.exists(self.pid_path) and self.answers():
                return True
            time.sleep(0.02)
        return False

    def _open_socket(self) -> None:
        if not isinstance(self.listener, UnixListener):
            return
        try:
            if self._group is not None:
                shutil.chown(self.listener.path, group=self._group)
            os.chmod(self.listener.path, 0o660)
        except (OSError, LookupError) as error:
            self.stop()
            raise exception.StorageDaemonError(
                f'{self.name}: its socket cannot be given to group {self._group}: {error}'
            ) from error

    def _check_listener(self) -> None:
        """Check that nobody serves at the unix socket: whoever starts a daemon there replaces it.

        :raises StorageDaemonError: if somebody does.
        """
        if isinstance(self.listener, UnixListener) and listening.is_served(self.listener.path):
            raise exception.StorageDaemonError(
                f'{self.name}: a daemon listens on {self.listener} already, and its monitor is not'
                f' at {self.monitor_path}; where it runs in a container, share the folder'
                f' {self.directory} with that')

    @property
    def runs(self) -> bool:
        """Whether the daemon lives, in whatever namespace."""
        return filelocks.daemon_pid(self.pid_path) is not None

    def pid(self) -> int | None:
        """Return the daemon's process id; None if it does not run in this PID namespace."""
        return filelocks.daemon_pid(self.pid_path) or None

    def has_listener(self) -> bool:
        """Return whether the daemon that runs was started to listen where this one is to."""
        try:
            with open(f'/proc/{self.pid()}/cmdline', errors='surrogateescape') as stream:
                return f',id={self._monitor_id}\0' in stream.read()
        except OSError:
            return False

    def stop(self, grace: float = 5) -> None:
        """End the daemon: SIGTERM, after ``grace`` seconds SIGKILL; it is gone when this returns.

        :raises StorageDaemonError: if it runs in another PID namespace.
        """
        if filelocks.daemon_pid(self.pid_path) == filelocks.ELSEWHERE:
            raise exception.StorageDaemonError(
                f'{self.name}: it runs in another PID namespace, and can be ended only there')
        filelocks.end_daemon(self.pid_path, grace)

    def objects(self) -> set[str]:
        """Return the ids of the objects that the daemon has, as certificates and throttle groups.

        :raises StorageDaemonError: if it does not answer.
        """
        with self.session() as session:
            # QEMU makes the folder of objects with the first of them.
            if all(entry['name'] != 'objects' for entry in session.execute('qom-list', path='/')):
                return set()
            return {entry['name'] for entry in session.execute('qom-list', path='/objects')}

    def credentials(self) -> set[str]:
        """Return the ids of the certificates that the daemon has; raises as ``objects``."""
        return {name for name in self.objects() if tls.is_credentials(name)}

    def _replace_credentials(self, session: Session, wanted: dict[str, Any]) -> None:
        there = self.credentials()
        if wanted['id'] not in there:
            session.execute('object-add', **wanted)
            for earlier in there:
                # Connections that were made with it keep it.
                session.execute('object-del', id=earlier)

    # Nodes and exports, by the names that naming.py makes.

    def nodes(self) -> set[str]:
        """Return the names of the block nodes that have one of ours."""
        return set(self.node_files())

    def node_files(self) -> dict[str, str]:
        """Return the same by name, with what QEMU calls the file of each."""
        with self.session() as session:
            answer = session.execute('query-named-block-nodes', flat=True)
        return {node['node-name']: str(node['file']) for node in answer
                if not node['node-name'].startswith('#')}

    def exports(self) -> dict[str, str]:
        """Return the exports' ids with the names of their nodes."""
        with self.session() as session:
            return {entry['id']: entry['node-name']
                    for entry in session.execute('query-block-exports')
                    if not entry['shutting-down']}

    def add_nodes(self, *nodes: dict[str, Any]) -> None:
        """Add block nodes, lowest first; what was added before a failure is removed again.

        The certificates that one names are read, if nobody has since they were renewed.

        :raises StorageDaemonError: if one is refused.
        """
        with self.session() as session:
            added: list[str] = []
            for node in nodes:
                for wanted in tls.objects_of(node):
                    self._replace_credentials(session, wanted)
            try:
                for node in nodes:
                    session.execute('blockdev-add', **node)
                    added.append(node['node-name'])
            except exception.StorageDaemonError as error:
                for name in reversed(added):
                    with contextlib.suppress(exception.StorageDaemonError):
                        session.execute('blockdev-del', node_name=name)
                if _NOT_SERVED in str(error):
                    raise exception.BaseUnreadable(
                        f'{self.name}: {node["export"]} is not served now: its image was deleted,'
                        ' deactivated or changed, or what serves it begins just now') from error
                raise

    def remove_nodes(self, *names: str) -> None:
        """Remove block nodes, highest first; closing a qcow2 writes its tables out.

        :raises StorageDaemonError: if one is in use.
        """
        with self.session() as session:
            for name in names:
                session.execute('blockdev-del', node_name=name)

    def add_export(self, export: str, node: str, writable: bool = False) -> None:
        """Serve a node over NBD under a name, which is the export's id as well.

        :raises StorageDaemonError: if the name is taken.
        """
        # Export ids must look like QEMU ids; ours (kind, hyphen, UUID) do.
        with self.session() as session:
            session.execute('block-export-add', type='nbd', id=export, node_name=node, name=export,
                            writable=writable)

    def remove_export(self, export: str, disconnect: bool) -> bool:
        """Stop serving an export.

        :param disconnect: also if there are clients, who then are cut off.
        :returns: False if it has clients and ``disconnect`` is not wanted.
        :raises StorageDaemonError: if it does not go away.
        """
        try:
            with self.session() as session:
                session.execute('block-export-del', id=export,
                                mode='hard' if disconnect else 'safe')
        except exception.StorageDaemonError as error:
            if not disconnect and 'in use' in str(error):
                return False
            raise
        deadline = time.monotonic() + _GONE_SECONDS
        while time.monotonic() < deadline:
            # The command returns before the export is gone.
            with self.session() as session:
                if all(entry['id'] != export
                       for entry in session.execute('query-block-exports')):
                    return True
            time.sleep(0.02)
        raise exception.StorageDaemonError(f'{self.name}: export {export} does not go away')
