"""``bootcache snapshot``: snapshots of many servers, together; a file tells of them."""

import argparse
import concurrent.futures
import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

from bootcache.exception import BootcacheError
from bootcache.quoting import one_line
from glance_bootcache.cli.arguments import count
from glance_bootcache.cli.deployment import DeploymentLister
from glance_bootcache.cli.listing import names
from glance_bootcache.deployment import checkpoint, choice
from glance_bootcache.deployment.checkpoint import Checkpoint, SavedServer, Status
from glance_bootcache.deployment.cloud import Cloud, CloudRefused, DeploymentLimits
from glance_bootcache.deployment.snapshotting import Snapshotting
from glance_bootcache.progressline import ProgressLine

_COLUMNS = ('server_id', 'name', 'image_id', 'outcome', 'reason')
_MOST_SERVERS = 1000


class SnapshotServers(DeploymentLister):
    """Take snapshots of many servers together, and write a file from which they can be resumed.

    A checkpoint of a whole deployment. Servers are those that fit all that is given: of any of the
    aggregates, and of any of the projects, and of any of those names or ids. Without --pause each
    snapshot is of the moment at which its host begins it; with --pause all servers are paused
    first, and are of one point in time. Asks Nova and Glance with the OS_* variables of the shell
    if OS_AUTH_URL is one of them, else with the section [service_auth].
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        self._refuse = parser.error
        for name, metavar, text in (
                ('aggregate', 'NAME', 'servers on hosts of this aggregate; can be repeated'),
                ('project', 'ID', 'servers of this project; can be repeated'),
                ('server', 'NAME-OR-ID', 'this server; can be repeated')):
            parser.add_argument(f'--{name}', dest=f'{name}s', action='append', default=[],
                                metavar=metavar, help=text)
        which = parser.add_mutually_exclusive_group()
        which.add_argument('--continue', dest='go_on', metavar='FILE',
                           help='go on with what a run that ended has begun: what it paused, what'
                                ' is missing, and what failed')
        which.add_argument('--delete', metavar='FILE',
                           help='unpause what a run has left paused, delete the images of its'
                                ' snapshots, and the file')
        parser.add_argument('-o', '--output', metavar='FILE',
                            help='file to write (default: checkpoint-TIME.json here)')
        parser.add_argument('--pause', action='store_true',
                            help='pause all servers that run, then take the snapshots; each goes on'
                                 ' when its own is taken')
        parser.add_argument('--skip-unfit', action='store_true',
                            help='leave out servers of which Nova takes no snapshot that can be'
                                 ' resumed, instead of refusing all')
        parser.add_argument('--most', type=count(_MOST_SERVERS), default=100, metavar='N',
                            help=f'servers at most (default: 100, up to {_MOST_SERVERS})')
        self.add_limits(parser, 16, 'requests to Nova at a time', 3600, 'time for all snapshots')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Choose, ask, and take them."""
        chosen = parsed_args.servers or parsed_args.projects or parsed_args.aggregates
        path = parsed_args.go_on or parsed_args.delete
        if bool(chosen) == bool(path):
            self._refuse('give --aggregate, --project or --server to say of which servers, or'
                         ' --continue or --delete with a file, alone')
        folder = os.path.dirname(os.path.abspath(parsed_args.output or ''))
        if not os.path.isdir(folder):
            raise BootcacheError(f'there is no folder {folder}; make it, or name another --output')
        cloud, limits = self.prepare(parsed_args)
        path = path and os.path.abspath(path)
        if parsed_args.delete:
            return self._delete(cloud, path, limits, parsed_args.yes)
        if path:
            # Where there is none, no lock is left beside it.
            checkpoint.read(path)
            with checkpoint.held(path):
                return self._take(cloud, path, _again(path), limits)
        made, running = self._choose(cloud, parsed_args)
        made_at = made.created_at.partition('.')[0].replace(':', '')
        path = os.path.abspath(parsed_args.output or f'checkpoint-{made_at}.json')
        if os.path.exists(path):
            raise BootcacheError(f'{path} exists; name another --output, or go on with --continue')
        hosts = len({saved.host for saved in made.servers})
        projects = len({saved.project_id for saved in made.servers})
        self.confirm(f'Take snapshots of {len(made.servers)} servers of {projects} project(s) on'
                     f' {hosts} host(s)' + (f', and pause {running} of them meanwhile'
                                            if made.pause else '') + '?', parsed_args.yes)
        with checkpoint.held(path):
            return self._take(cloud, path, made, limits)

    def _choose(self, cloud: Cloud, parsed_args: argparse.Namespace) -> tuple[Checkpoint, int]:
        """Note the servers that are meant; returns also how many of them run."""
        wanted = choice.WantedServers(
            tuple(dict.fromkeys(parsed_args.servers)), tuple(dict.fromkeys(parsed_args.projects)),
            cloud.hosts_of(parsed_args.aggregates) if parsed_args.aggregates else None)
        made = Checkpoint(uuid.uuid4().hex, checkpoint.now(), parsed_args.pause, [])
        with concurrent.futures.ThreadPoolExecutor(parsed_args.at_once) as pool:
            answers = pool.map(lambda query: cloud.find(query, parsed_args.most),
                               choice.queries(wanted))
            found = choice.choose(wanted, [server for answer in answers for server in answer],
                                  parsed_args.most)
            unfit = {server['id']: why for server in found if (why := choice.refusal(server))}
            for server, why in unfit.items():
                self.app.stderr.write(f'server {server}: {why}\n')
            if unfit and not parsed_args.skip_unfit:
                raise BootcacheError(f'no snapshot can be taken of {names(list(unfit))}; nothing'
                                     ' was done')
            fit = [server for server in found if server['id'] not in unfit]
            if not fit:
                raise BootcacheError('no server is left of which a snapshot can be taken')

            def note(server: dict[str, Any]) -> SavedServer:
                # What only the server itself shows, such as its server group.
                details = cloud.details(server['id']) or server
                return choice.keep(details, cloud.networks(details), made.checkpoint_id)
            made.servers = list(pool.map(note, fit))
        for saved in made.servers:
            for text in saved.notes:
                self.app.stderr.write(f'server {saved.server_id}: {one_line(text)}\n')
        return made, sum(server['status'] == 'ACTIVE' for server in fit)

    @contextlib.contextmanager
    def _work_on(self, cloud: Cloud, path: str, made: Checkpoint,
                 limits: DeploymentLimits) -> Iterator[tuple[Snapshotting, ProgressLine]]:
        """Yield who works on a checkpoint, and who shows it; what is paused at the end is told."""
        progress = self.app.progress()
        taking = Snapshotting(cloud, made, lambda: checkpoint.write(path, made), progress, limits)
        try:
            yield taking, progress
        finally:
            progress.end()
            if left := [saved.server_id for saved in taking.paused()]:
                text = (f'{len(left)} servers may be PAUSED still: {names(left)}; "openstack server'
                        ' unpause" has them go on, and so does bootcache snapshot --continue'
                        f' {path}')
                self.complaints.append(text)
                self.app.stderr.write(f'{text}\n')

    def _take(self, cloud: Cloud, path: str, made: Checkpoint, limits: DeploymentLimits) -> Any:
        with self._work_on(cloud, path, made, limits) as (taking, _progress):
            taking.run()
        missing = [saved for saved in made.servers if saved.status is not Status.SAVED]
        self.complaints += [f'{saved.server_id}: {saved.reason or saved.status}'
                            for saved in missing]
        if missing:
            self.complaints[-1] += f'; go on with: bootcache snapshot --continue {path}'
        self.app.stderr.write(f'{len(made.servers) - len(missing)} snapshots of'
                              f' {len(made.servers)} servers are in {path}\n')
        return _COLUMNS, [(saved.server_id, one_line(saved.name), saved.image_id or None,
                           str(saved.status), saved.reason) for saved in made.servers]

    def _delete(self, cloud: Cloud, path: str, limits: DeploymentLimits, yes: bool) -> Any:
        made = checkpoint.read(path)
        known = [saved for saved in made.servers if saved.image_id or saved.status is Status.ASKED]
        self.confirm(f'Delete the {len(known)} images of {path}?', yes)
        rows = []
        with checkpoint.held(path):
            with self._work_on(cloud, path, made, limits) as (taking, progress):
                taking.release()
                lost = cloud.images_of(made.checkpoint_id)
                for saved in made.servers:
                    image = saved.image_id or lost.get(saved.server_id, '')
                    outcome, reason = 'deleted' if image else 'has none', ''
                    try:
                        if image:
                            cloud.delete_image(image)
                    except CloudRefused as error:
                        outcome, reason = 'failed', str(error)
                        self.complaints.append(
                            f'{saved.server_id}: image {image} is still there: {error}')
                    rows.append((saved.server_id, one_line(saved.name), image or None, outcome,
                                 reason))
                    progress.bar('deleting', len(rows), len(made.servers), 'images')
            if not self.complaints:
                os.unlink(path)
                os.unlink(f'{path}.lock')
        return _COLUMNS, rows


def _again(path: str) -> Checkpoint:
    """Read a checkpoint that is gone on with."""
    made = checkpoint.read(path)
    for saved in made.servers:
        if saved.status is Status.FAILED:
            saved.status, saved.image_id = Status.CHOSEN, ''
        if saved.status is not Status.SAVED:
            saved.reason = ''
    return made
