"""``bootcache node``: the storage nodes of a cloud."""

import argparse
from typing import Any

from bootcache import exception
from bootcache.quoting import one_line
from bootcache.rpc.messages import ListNodes, NodeWish, SetNodeWish
from glance_bootcache.cli.listing import Listing


class NodeList(Listing):
    """List the storage nodes.

    state is "up"; "away" of a node that was not heard of for 20 seconds: others take over those of
    its images for which they are asked; "out" after 10 minutes: others take over all of them.
    "draining", "drained" and "forgotten" are as an operator says; a drained node works on no image
    any more. "restored" in notes: it removes no file, see bootcache-manage db accept.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate."""
        self.nothing = 'no storage node has told of itself yet; each does within 5 seconds'
        return ('node', 'state', 'seen', 'images', 'free_bytes', 'rpc', 'notes'), [
            (one_line(node['name']), _state(node), round(node['silent']), node['images'],
             node['free_bytes'], one_line(node['rpc']) or None,
             'restored' if node['restored'] else None)
            for node in self.app.storage_client().send(ListNodes())]


class _WishCommand(Listing):
    """Says what is wanted of storage nodes."""

    wish: NodeWish | None = None

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('nodes', nargs='+', metavar='node',
                            help='names of storage nodes, as "bootcache node list" has them')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask for each."""
        client = self.app.storage_client()
        known = {name: client.send(SetNodeWish(name, self.wish)) for name in parsed_args.nodes}
        if missing := [name for name, is_known in known.items() if not is_known]:
            raise exception.BootcacheError(
                f'there is no storage node {", ".join(map(one_line, missing))}; "bootcache node'
                ' list" shows those that there are')
        return ('node',), [(one_line(name),) for name in known]


class NodeDrain(_WishCommand):
    """Have other storage nodes take over all images of these, which get no new ones.

    It is over when "bootcache node list" shows "drained". Hosts that read from the node go to the
    others by themselves within some minutes; its machine can be switched off then.
    """

    wish = NodeWish.DRAINED


class NodeResume(_WishCommand):
    """Have storage nodes that were drained get images again."""

    wish = None


class NodeForget(_WishCommand):
    """Forget storage nodes that are gone for good: others take over all of their images, and remove
    what was not finished of snapshots.

    It is refused while a node works. A node leaves the list when others have its images.
    """

    wish = NodeWish.FORGOTTEN


def _state(node: dict[str, Any]) -> str:
    if node['wish'] == NodeWish.DRAINED and node['state'] == 'up':
        return 'draining' if node['images'] else 'drained'
    return str(node['wish'] if node['wish'] == NodeWish.FORGOTTEN else node['state'])
