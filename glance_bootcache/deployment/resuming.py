"""Starting the servers of a checkpoint again: RR-7482, section 5.5 and figure 12, by Nova's API.

What has been started is read off Nova each time, by the image and the mark of each server: a run
that ends anywhere is gone on with by the next one, which starts only what is missing.
"""

import base64
import concurrent.futures
import dataclasses
import functools
import http
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bootcache.exception import BootcacheError
from bootcache.quoting import one_line
from glance_bootcache.deployment.checkpoint import Checkpoint, SavedServer, Status
from glance_bootcache.deployment.choice import RESUMED
from glance_bootcache.deployment.cloud import Cloud, CloudRefused, DeploymentLimits
from glance_bootcache.progressline import ProgressLine


@dataclasses.dataclass(frozen=True)
class Nics:
    """One way to connect a server.

    :ivar nics: as novaclient's create takes it.
    :ivar note: what is not given again that way; empty if all is.
    """

    nics: str | tuple[dict[str, str], ...]
    note: str = ''


def ways_to_connect(saved: SavedServer, original_is_there: bool) -> list[Nics]:
    """Return the ways to connect a server, the best one first.

    A port that was made for the server goes with it, one that somebody else had made stays; an
    address is free again when its port is gone. Nova tells when it is asked.
    """
    networks = saved.networks
    if not networks:
        return [Nics('none')]
    told = ', '.join(address for one in networks for address in one.addresses)
    last = Nics(tuple({'net-id': one.network_id} for one in networks),
                f'it has other addresses than {told or "before"}, which '
                + (f'server {saved.server_id} has still' if original_is_there
                   else 'are in use, or cannot be given'))
    if original_is_there:
        return [last]
    return [Nics(tuple({'port-id': one.port_id} for one in networks)),
            Nics(tuple({'net-id': one.network_id, **_fixed(one.addresses)} for one in networks)),
            last]


def _fixed(addresses: Sequence[str]) -> dict[str, str]:
    """Return what asks for fixed addresses: Nova takes one of each kind."""
    found: dict[str, str] = {}
    for address in addresses:
        found.setdefault('v6-fixed-ip' if ':' in address else 'v4-fixed-ip', address)
    return found


def request(saved: SavedServer, marked: str, keys: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Return more arguments for novaclient's create, and what is not given again, in words.

    :param marked: the metadata of servers that were resumed together.
    :param keys: names of the user's key pairs.
    """
    more: dict[str, Any] = {'meta': {**saved.metadata, RESUMED: marked}}
    lost = list(saved.notes)
    if saved.key_name and saved.key_name in keys:
        more['key_name'] = saved.key_name
    elif saved.key_name:
        lost.append(f'key pair {saved.key_name} is not one of this user\'s; the disk has the key')
    if saved.networks and saved.security_groups:
        more['security_groups'] = list(saved.security_groups)
    if saved.tags:
        more['tags'] = list(saved.tags)
    if saved.description:
        more['description'] = saved.description
    if saved.user_data:
        # novaclient encodes it again.
        more['userdata'] = base64.b64decode(saved.user_data)
    if saved.config_drive:
        more['config_drive'] = True
    return more, lost


def flavor_of(saved: SavedServer, flavors: Mapping[str, Any]) -> Any:
    """Return the flavor of a server.

    :param flavors: by name, as novaclient has them.
    :raises BootcacheError: if there is none of its name, or it has become a smaller one.
    """
    name = saved.flavor['name']
    found = flavors.get(name)
    if found is None:
        raise BootcacheError(f'there is no flavor {name} any more; make it again:'
                             f' "openstack flavor create --vcpus {saved.flavor["vcpus"]} --ram'
                             f' {saved.flavor["ram"]} --disk {saved.flavor["disk"]} {name}"')
    if 0 < found.disk < saved.flavor['disk']:
        raise BootcacheError(f'flavor {name} has {found.disk} GiB of disk now, and the snapshot is'
                             f' of one with {saved.flavor["disk"]}; make a flavor {name} of that'
                             ' size')
    return found


def hosts_for(number: int, saved: SavedServer, candidates: Sequence[str] | None,
              others: bool) -> list[str | None]:
    """Return the hosts to try for a server, in this order; None leaves it to Nova.

    :param number: of the server, by which they are spread.
    :param candidates: the hosts that may be; None for any that Nova chooses.
    :param others: not the host that it ran on.
    :raises BootcacheError: if there is none.
    """
    if candidates is None:
        return [None]
    those = [host for host in candidates if not (others and host == saved.host)]
    if not those:
        raise BootcacheError('no compute host that may be takes servers; "openstack compute service'
                             ' list" shows them')
    first = number % len(those)
    return [*those[first:], *those[:first]]


STARTED, THERE, FAILED = 'started', 'there already', 'failed'
_PERIOD_SECONDS = 1.0
# Another way to connect a server, or another host, is tried after these.
_OTHER_WAY = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)


@dataclasses.dataclass(frozen=True)
class Placing:
    """Where servers are started.

    :ivar hosts: those that may be; None if Nova chooses.
    :ivar others: none on the host that it ran on.
    :ivar zone: availability zone; None for the one that each was in.
    :ivar suffix: appended to the names.
    """

    hosts: tuple[str, ...] | None
    others: bool
    zone: str | None
    suffix: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a server.

    :ivar saved: the server that was snapshotted.
    :ivar outcome: STARTED, THERE or FAILED.
    :ivar reason: why it failed; else what could not be given again.
    :ivar server_id: of the one that was started; empty if none was.
    :ivar host: that it is on; empty if that is not known.
    """

    saved: SavedServer
    outcome: str
    reason: str
    server_id: str = ''
    host: str = ''


class Restart:
    """Starts the servers of a checkpoint.

    :param limits: servers that are started at a time, tries for each server (each on another host
        if there are more), and seconds in which one has to become ACTIVE.
    """

    def __init__(self, cloud: Cloud, checkpoint: Checkpoint, placing: Placing,
                 progress: ProgressLine, limits: DeploymentLimits):
        self._cloud = cloud
        self._checkpoint = checkpoint
        self._placing = placing
        self._progress = progress
        self._limits = limits
        # With another suffix a checkpoint is another deployment, beside the first one.
        self._mark = f'{checkpoint.checkpoint_id}{placing.suffix}'
        self._stopped = threading.Event()

    def run(self) -> list[Outcome]:
        """Start what is missing; what is under way when it is interrupted goes on at Nova.

        :raises CloudRefused: if Nova, Glance or Keystone cannot be asked.
        """
        start = functools.partial(self._start, flavors=self._cloud.flavors(),
                                  keys=self._cloud.keys(), project=self._cloud.project(),
                                  zones=self._cloud.zones())
        outcomes: list[Outcome] = []
        pool = concurrent.futures.ThreadPoolExecutor(self._limits.at_once)
        try:
            under_way = {pool.submit(start, number, saved): saved
                         for number, saved in enumerate(self._checkpoint.servers)}
            for future in concurrent.futures.as_completed(under_way):
                try:
                    outcomes.append(future.result())
                except BootcacheError as error:
                    outcomes.append(Outcome(under_way[future], FAILED, one_line(error)))
                self._tell(outcomes)
        finally:
            self._stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return sorted(outcomes, key=lambda one: (one.saved.name, one.saved.server_id))

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        last = outcomes[-1]
        text = f'server {last.saved.server_id} ({one_line(last.saved.name)}): {last.outcome}'
        text += f' as {last.server_id}' if last.server_id else ''
        text += f' on {last.host}' if last.host else ''
        text += f'; {last.reason}' if last.reason else ''
        self._progress.line(text, terminal=bool(last.reason))
        failed = sum(one.outcome == FAILED for one in outcomes)
        self._progress.bar('resuming', len(outcomes) - failed, len(self._checkpoint.servers),
                           'servers', f'{failed} failed' if failed else '')

    def _start(self, number: int, saved: SavedServer, *, flavors: Mapping[str, Any],
               keys: set[str], project: str, zones: set[str]) -> Outcome:
        if saved.status is not Status.SAVED:
            raise BootcacheError(f'its snapshot is not there ({saved.reason or saved.status});'
                                 ' "bootcache snapshot --continue" takes it')
        if saved.project_id and saved.project_id != project:
            raise BootcacheError(
                f'it is of project {saved.project_id}, and Nova is asked as {project}: source'
                ' an openrc of its project, or set OS_PROJECT_ID with the other OS_* variables')
        if there := self._there(saved):
            return there
        if self._cloud.image_status(saved.image_id) != 'active':
            raise BootcacheError(f'its image {saved.image_id} is not active in Glance, or not seen'
                                 ' by this project: look with "openstack image show"')
        flavor = flavor_of(saved, flavors)
        more, lost = request(saved, self._mark, keys)
        hosts = hosts_for(number, saved, self._placing.hosts, self._placing.others)
        zone = self._placing.zone or (
            saved.availability_zone if saved.availability_zone in zones else None)
        for attempt, host in zip(range(1, self._limits.tries + 1), itertools.cycle(hosts)):
            is_last = attempt == self._limits.tries
            if host is not None:
                more['host'] = host
            elif zone:
                more['availability_zone'] = zone
            try:
                # Of a request without an answer Nova may have made the server.
                if attempt > 1 and (there := self._there(saved)):
                    return there
                server, note = self._ask(saved, flavor, more)
                found = self._await(server)
            except CloudRefused as error:
                # That a host cannot be is Nova's answer to what was asked, another one may.
                if is_last or not (error.passes or len(hosts) > 1):
                    raise
                fault = one_line(error)
            else:
                if found['status'] != 'ERROR':
                    return _outcome(saved, found, STARTED, *lost, note)
                fault = one_line(found.get('fault', {}).get('message') or 'ERROR without a reason')
                self._remove(server)
                if is_last:
                    raise BootcacheError(f'Nova could not start it in {attempt} attempts, the last'
                                         f' one was removed: {fault}')
            self._progress.line(f'server {saved.server_id}, attempt {attempt}: {fault};'
                                ' it is tried again')
            self._pause()
        raise BootcacheError('it was not tried')

    def _there(self, saved: SavedServer) -> Outcome | None:
        """Find the server that an earlier run has started; one that never ran is removed."""
        for server in self._cloud.servers_of(saved.image_id):
            if server.get('metadata', {}).get(RESUMED) != self._mark:
                continue
            if server['status'] == 'ERROR' and not server.get('OS-SRV-USG:launched_at'):
                self._remove(server['id'])
                continue
            found = self._await(server['id'])
            if found['status'] == 'ERROR':
                raise BootcacheError(f'server {found["id"]} is there, in ERROR: mend it ("openstack'
                                     ' server reboot --hard"), or delete it and run this again')
            return _outcome(saved, found, THERE)
        return None

    def _ask(self, saved: SavedServer, flavor: Any, more: dict[str, Any]) -> tuple[str, str]:
        """Ask for a server, connected as well as can be; its id, and what is not given again."""
        original = bool(saved.networks) and self._cloud.details(saved.server_id) is not None
        ways = ways_to_connect(saved, original)
        for way in ways:
            try:
                return self._cloud.create(saved.name + self._placing.suffix, saved.image_id, flavor,
                                          way.nics, more), way.note
            except CloudRefused as error:
                if way is ways[-1] or error.status not in _OTHER_WAY:
                    raise
        raise BootcacheError('there is no way to connect it')

    def _await(self, server: str) -> dict[str, Any]:
        """Wait until Nova has started a server, or cannot."""
        deadline = time.monotonic() + self._limits.timeout
        while True:
            try:
                found = self._cloud.details(server)
                if found is None:
                    raise BootcacheError(f'server {server} was deleted while it was started')
                if found['status'] != 'BUILD':
                    return found
            except CloudRefused as error:
                if not error.passes:
                    raise
            if time.monotonic() >= deadline:
                raise BootcacheError(f'server {server} is not ACTIVE after {self._limits.timeout:g}'
                                     ' s; Nova goes on, and the same command looks at it again')
            self._pause()

    def _remove(self, server: str) -> None:
        """Delete a server that never ran, and wait until its ports are free again."""
        self._cloud.delete(server)
        deadline = time.monotonic() + self._limits.timeout
        while self._cloud.details(server) is not None and time.monotonic() < deadline:
            self._pause()

    def _pause(self) -> None:
        if self._stopped.wait(_PERIOD_SECONDS):
            raise BootcacheError('interrupted; Nova goes on with what it was asked for, and the'
                                 ' same command starts what is missing')


def _outcome(saved: SavedServer, found: Mapping[str, Any], outcome: str, *lost: str) -> Outcome:
    return Outcome(saved, outcome, '; '.join(filter(None, lost)), found['id'],
                   found.get('OS-EXT-SRV-ATTR:host') or '')
