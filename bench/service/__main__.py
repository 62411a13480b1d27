"""``tools/bench.sh service``: what the storage service's RPC costs, and what rate it answers.

A real glance-bootcache by a real RabbitMQ, and then three of them on one MariaDB; Keystone, Nova
and Glance are stand-ins. Processes play compute hosts, each host with a reply queue and a secret of
its own, so that the rate limiter is as shipped. Reads no image but for its hash: images are of 4
KiB. Of several storage nodes each message comes to any; CPU and cores are those of all services.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.service import figures, measuring, methods, player, stage, storagenode
from tools import rabbit
from tools.rabbit import Rabbit

_STAND_INS = ['Glance', 'Nova', 'Keystone']
_SHARING = ['players', 'RabbitMQ', 'database', 'stand-ins']
# Processes that play hosts.
_PLAYERS = 2
_NODES = 1, 3


def parsed() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog='tools/bench.sh service', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true',
                        help='200 images and 1,000 hosts in the place of 2,000 and 10,000; with'
                             ' several storage nodes 50 images and 200 hosts')
    parser.add_argument('--database', choices=list(stage.DATABASES), nargs='+',
                        default=[stage.SQLITE],
                        help='by which a service that is alone keeps its state')
    parser.add_argument('--nodes', type=int, choices=_NODES, nargs='+', default=_NODES,
                        help='storage nodes; several have one MariaDB')
    parser.add_argument('--parts', choices=measuring.PARTS, nargs='+', default=measuring.PARTS)
    parser.add_argument('--report', default='bench-report', help='directory of service.json')
    parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
    return parser.parse_args()


def plan(databases: Sequence[str], nodes: Sequence[int], is_quick: bool
         ) -> Iterator[tuple[str, int, measuring.Size]]:
    """Yield what is measured one after the other: database, storage nodes, and how much.

    :param databases: of a service that is alone.
    """
    size = measuring.QUICK if is_quick else measuring.FULL
    for count in nodes:
        if count == 1:
            yield from ((database, 1, size) for database in databases)
        else:
            yield stage.MARIADB, count, measuring.QUICK_NODES if is_quick else size


def measured(broker: Rabbit, database: str, size: measuring.Size, parts: Sequence[str],
             nodes: int = 1) -> list[dict[str, Any]]:
    """Measure with one database and so many storage nodes, and return the entries of ``runs``."""
    runs = []
    with stage.DATABASES[database]() as kept, stage.running(broker, kept, nodes) as made, \
            player.started(broker.url, _PLAYERS) as players:
        made.start()
        for run in measuring.Measuring(made, players, size).runs(parts):
            print(json.dumps(run), file=sys.stderr, flush=True)
            runs.append(run)
    return runs


def report(runs: list[dict[str, Any]], load: float) -> dict[str, Any]:
    """Return the report.

    :param load: of this machine before the first run.
    """
    commit = subprocess.run(['git', '-C', str(storagenode.TOP), 'describe', '--always', '--dirty'],
                            text=True, capture_output=True, check=False).stdout.strip()
    return {'commit': commit, 'date': datetime.date.today().isoformat(), 'cpus': os.cpu_count(),
            'load_before': round(load, 1), 'stand_ins': _STAND_INS,
            # What has the same CPUs as the services.
            'players': _PLAYERS, 'cpus_shared_with': _SHARING, 'cpu_of': 'all services of a run',
            'empty_call': methods.EMPTY_CALL, 'runs': runs}


def main() -> int:
    """Measure in namespaces of its own, which end with this process, and write the report."""
    options = parsed()
    if not options.inside and os.geteuid() == 0:
        # The shell stays, as the first process of the namespace gets orphans to reap.
        os.execvp('unshare', ['unshare', '--net', '--pid', '--fork', '--kill-child=KILL',
                              '--mount-proc', 'sh', '-c', 'ip link set lo up && "$@"; exit $?',
                              'sh', sys.executable, '-W', 'ignore', '-m', 'bench.service',
                              *sys.argv[1:], '--inside'])
    load = os.getloadavg()[0]
    runs = []
    for database, nodes, size in plan(options.database, options.nodes, options.quick):
        # Queues of services that have ended take no messages of others.
        with rabbit.running() as broker:
            runs += measured(broker, database, size, options.parts, nodes)
    folder = Path(options.report)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'service.json').write_text(json.dumps(report(runs, load), indent=1) + '\n')
    print('\n'.join(figures.table(runs)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
