"""Whether libvirt's QEMU can open what is below servers' disks: told by modes, or by a start.

Nova's user may not become QEMU's, so modes along the path are compared; access control lists, what
AppArmor or SELinux deny, and a QEMU of another container that lacks the files, are seen only when
a server is started.
"""

import contextlib
import dataclasses
import errno
import glob
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from xml.etree import ElementTree

from oslo_log import log as logging

from bootcache import listening
from bootcache.locks import leaf

LOG = logging.getLogger(__name__)

_ACL = 'system.posix_acl_access'


@dataclasses.dataclass(frozen=True)
class Identity:
    """Whom QEMU runs as.

    :ivar uid: its user.
    :ivar gids: its groups.
    :ivar has_all_gids: whether these are all; of a user that this host does not know they are not.
    """

    uid: int
    gids: frozenset[int]
    has_all_gids: bool = True


@dataclasses.dataclass(frozen=True)
class PathStep:
    """A directory on the way to a socket, or the socket.

    :ivar path: of it.
    :ivar mode: as of ``stat``.
    :ivar uid: its owner.
    :ivar gid: its group.
    :ivar has_acl: whether an access control list says more than the mode.
    """

    path: str
    mode: int
    uid: int
    gid: int
    has_acl: bool = False


def identity(capabilities: str) -> Identity | None:
    """Return whom libvirt's QEMU runs as, None if libvirt does not tell.

    :param capabilities: libvirt's XML; its DAC label is ``+user:+group``.
    """
    try:
        root = ElementTree.fromstring(capabilities)
        for model in root.iterfind('./host/secmodel'):
            if model.findtext('model') == 'dac':
                label = model.findtext('baselabel') or ''
                uid, gid = (int(part.lstrip('+')) for part in label.split(':'))
                groups = _groups(uid, gid)
                return Identity(uid, frozenset({gid, *(groups or ())}), groups is not None)
    except (ElementTree.ParseError, ValueError):
        pass
    return None


def _groups(uid: int, gid: int) -> list[int] | None:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return None


def look(path: str) -> list[PathStep]:
    """Return the steps to a socket, from the top; none if it is not there.

    :raises OSError: if they cannot be looked at.
    """
    path = os.path.realpath(path)
    names = [path]
    while os.path.dirname(names[-1]) != names[-1]:
        names.append(os.path.dirname(names[-1]))
    try:
        return [_step(name) for name in reversed(names)]
    except FileNotFoundError:
        return []


def _step(path: str) -> PathStep:
    status = os.stat(path)
    try:
        has_acl = _ACL in os.listxattr(path)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        has_acl = False
    return PathStep(path, status.st_mode, status.st_uid, status.st_gid, has_acl)


def denial(steps: Iterable[PathStep], who: Identity) -> str:
    """Return why QEMU cannot open a socket, and the cure; empty if it can, for all we know. Pure.

    Of root is not known what libvirt leaves it.
    """
    if who.uid == 0:
        return ''
    for step in steps:
        # A directory is searched, a socket written to.
        right = stat.S_IXOTH if stat.S_ISDIR(step.mode) else stat.S_IWOTH
        if step.uid == who.uid:
            right <<= 6
        elif step.gid in who.gids:
            right <<= 3
        if not step.mode & right and not step.has_acl:
            return (f'QEMU, which libvirt runs as user {who.uid} and groups'
                    f' {", ".join(map(str, sorted(who.gids)))}, may not pass {step.path} (mode'
                    f' {stat.S_IMODE(step.mode):o}, owner {step.uid}:{step.gid}); set'
                    ' [bootcache]gateway_group, or the mode')
    return ''


def blamed(error: str, socket_path: str, directory: str) -> str:
    """Return what QEMU could not open as a domain did not start: the socket or a cache image. Pure.

    :param error: libvirt's, with QEMU's own words.
    :param directory: of cache images.
    :returns: its path; empty if the error is another one.
    """
    found = re.search(rf"'({re.escape(socket_path)}|{re.escape(directory)}/[^'/]+)'", error)
    return found[1] if found else ''


def denial_of_start(error: str, path: str, is_here: bool) -> str:
    """Return why the next server would not start either, and the cure; empty if it may. Pure.

    :param error: libvirt's, which blames the path.
    :param is_here: whether this process could open it all the time.
    """
    if any(os.strerror(code) in error for code in (errno.EACCES, errno.EPERM)):
        return (f'QEMU is denied {path}; see its mode, its group ([bootcache]gateway_group for the'
                ' gateway\'s socket), and AppArmor\'s or SELinux\'s rules for libvirt\'s QEMU, then'
                ' restart nova-compute')
    if is_here and any(os.strerror(code) in error for code in (errno.ENOENT, errno.ECONNREFUSED)):
        return (f'QEMU does not see {path}, which is here: where libvirt or the gateway run in'
                f' containers of their own, share the folder {os.path.dirname(path)} with them (the'
                ' folder, not a socket in it), then restart nova-compute')
    return ''


class GatewaySocket:
    """What is known of one host's socket: whether servers can be started that need it.

    :ivar reason: why QEMU cannot open it, or cache images; empty if it can, as far as is known.

    :param path: of the socket.
    :param directory: of cache images.
    """

    def __init__(self, path: str, directory: str):
        self._path = path
        self._directory = directory
        self._qemu: Identity | None = None
        # Why it cannot, by modes, and as a start has shown, of that very socket.
        self._denial = self._denied = ''
        self._denied_socket: tuple[int, ...] | None = None
        # What was said that may be so.
        self._warned = ''
        # Servers that go the stock way just now. Guarded by the lock.
        self._stock_only: set[str] = set()
        self._lock = leaf('the lock of servers that go the stock way')

    @property
    def reason(self) -> str:
        """Why QEMU cannot open it; empty if it can, as far as is known."""
        return self._denied or self._denial

    def reason_for(self, server_id: str) -> str:
        """Return why a server is to go the stock way; empty if it need not."""
        with self._lock:
            only = server_id in self._stock_only
        return self.reason or ('it did not start from a cache image' if only else '')

    def check(self, qemu: Identity | None = None) -> None:
        """Compare the modes; new servers go the stock way while they do not fit.

        :param qemu: whom QEMU runs as, once that is known.
        :raises OSError: if it cannot be told.
        """
        if self._denied and self._identity() != self._denied_socket:
            LOG.info('bootcache: the gateway\'s socket is another one, or has another mode: servers'
                     ' boot from cache images again')
            self._denied = ''
        self._qemu = qemu or self._qemu
        before = self._denial
        found = '' if self._qemu is None else denial(look(self._path), self._qemu)
        if self._qemu is not None and not self._qemu.has_all_gids:
            if found and found != self._warned:
                LOG.warning('bootcache: perhaps servers cannot open the gateway\'s socket, if their'
                            ' user, which this host does not know, has no other groups: %s', found)
            self._warned, found = found, ''
        self._denial = found
        if self._denial and self._denial != before:
            LOG.error('bootcache: servers go the stock way: %s', self._denial)
        elif before and not self._denial:
            LOG.info('bootcache: QEMU may open the gateway\'s socket now')

    def _identity(self) -> tuple[int, ...] | None:
        """Return what is another for each socket, and for each change of its rights."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def start(self, server_id: str, start: Callable[[], None],
              make_stock: Callable[[], bool]) -> None:
        """Start a server; once more, the stock way, if QEMU cannot open what is below its disk.

        If the next one could not either, all servers of the host go the stock way from now on.

        :param start: makes what is missing of its disk, and starts it.
        :param make_stock: sees to it that its disk is made anew, or is put onto a base of stock
            Nova's; False if that is not possible.
        :raises Exception: Nova's.
        """
        before = self._identity()
        try:
            start()
        except Exception as error:
            path = blamed(str(error), self._path, self._directory)
            if not path or not make_stock():
                raise
            is_here = os.path.exists(path) if path != self._path else (
                before is not None and self._identity() == before and listening.is_served(path))
            self._failed(server_id, path, denial_of_start(str(error), path, is_here))
            with self.stock_only(server_id):
                start()

    def _failed(self, server_id: str, path: str, denied: str) -> None:
        if denied and not self._denied:
            self._denied, self._denied_socket = denied, self._identity()
            LOG.error('bootcache: servers go the stock way: %s', denied)
        LOG.warning('bootcache: server %s did not start, as QEMU could not open %s; it is made the'
                    ' stock way', server_id, path)

    @contextlib.contextmanager
    def stock_only(self, server_id: str) -> Iterator[None]:
        """Send a server the stock way while the block runs."""
        with self._lock:
            self._stock_only.add(server_id)
        try:
            yield
        finally:
            with self._lock:
                self._stock_only.discard(server_id)


APPARMOR = 'apparmor'
# What libvirt's profiles of servers take in, and what operators add to that.
RULES = ('/etc/apparmor.d/abstractions/libvirt-qemu',
         '/etc/apparmor.d/abstractions/libvirt-qemu.d/*',
         '/etc/apparmor.d/local/abstractions/libvirt-qemu', '/etc/apparmor.d/libvirt/TEMPLATE.qemu')
_RULE = re.compile(r'\s*(?:audit\s+|allow\s+|owner\s+)*(?:file\s+)?'
                   r'"?((?:/|@\{)[^\s"]*)"?\s+([a-zA-Z]+)\s*,')
_GLOBS = {'**': '.*', '*': '[^/]*', '?': '[^/]', '{': '(?:', '}': ')', ',': '|'}


def models(capabilities: str) -> frozenset[str]:
    """Return the security models that libvirt has for QEMU, such as ``dac`` and ``apparmor``. Pure.

    :param capabilities: libvirt's XML.
    """
    try:
        root = ElementTree.fromstring(capabilities)
    except ElementTree.ParseError:
        return frozenset()
    return frozenset(model.text or '' for model in root.iterfind('./host/secmodel/model'))


def allows(rules: str, path: str) -> bool:
    """Tell whether a rule of AppArmor's allows to write to a path. Pure.

    :param rules: text of its files.
    """
    return any('w' in found[2] and _pattern(found[1]).fullmatch(path)
               for found in map(_RULE.match, rules.splitlines()) if found is not None)


def _pattern(text: str) -> re.Pattern[str]:
    # A variable is not looked up: it may be anything.
    pieces = re.findall(r'@\{\w+\}|\*\*|[*?{},]|[^*?{},@]+|@', text)
    return re.compile(''.join(
        '.*' if piece.startswith('@{') else _GLOBS.get(piece, re.escape(piece))
        for piece in pieces))


def warning(capabilities: str, path: str, rules: Iterable[str] = RULES) -> str:
    """Return that QEMU is probably denied the socket, with the cure; empty if not, or not known.

    :param capabilities: libvirt's XML.
    :param path: of the socket.
    :param rules: AppArmor's files, as patterns.
    """
    if APPARMOR not in models(capabilities):
        return ''
    texts = []
    for name in (name for pattern in rules for name in glob.glob(pattern)):
        try:
            with open(name) as stream:
                texts.append(stream.read())
        except (OSError, ValueError):
            # Of what may not be read nothing is known.
            return ''
    if not texts or allows('\n'.join(texts), path):
        return ''
    return (f'AppArmor confines QEMU, and no rule lets it write to {path}: add "{path} rw," to'
            ' /etc/apparmor.d/local/abstractions/libvirt-qemu, or servers will go the stock way')
