"""Whether AppArmor lets libvirt's QEMU open the gateway's socket, as far as its rules tell.

A profile may be put together in other ways, so this is a hint to an operator; what is denied shows
when a server is started (socketfault.py). SELinux's rules are not in files that tell it.
"""

import glob
import re
from collections.abc import Iterable
from xml.etree import ElementTree

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
