"""Profile boots through Nova: a server in the service project, without a network.

An untrusted image so runs where tenants' images run. The compute host that gets the server records
it below its overlay, sees when its boot is over, and reports what it read, as of any server's boot.
"""

import contextlib
import dataclasses
import http
import re
import secrets
import time
from typing import Any

from keystoneauth1 import exceptions as ks_exceptions
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import timeutils

from bootcache import conf as bootcache_conf
from bootcache import ending, exception, properties
from bootcache.bootend import BootMarker
from bootcache.rpc import messages
from glance_bootcache import away
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.profileboot import notbooted
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.storage.nodefiles import FileKind, NodeFiles, tell_unnamed

LOG = logging.getLogger(__name__)

# 2.37 for servers without a network, 2.79 is old enough for every supported Nova.
API_VERSION = '2.79'
NAME_PREFIX = 'bootcache-profile-'
# MiB, of a flavor that is chosen.
MIN_RAM = 512
# Between two looks at a server: until its host records, and then.
_POLL_SECONDS, _LOOK_SECONDS = 1.0, 5.0
# From the boot's time limit, within which it has to begin as well, until there is a report.
_REPORT_SECONDS = 90.0
# A server that runs while no host has asked for a recording is on a host without the driver.
_UNHEARD_SECONDS = 30.0
# Flavors that a reason names.
_MOST_TOLD = 5


@dataclasses.dataclass(frozen=True)
class Flavor:
    """A flavor's size.

    :ivar flavor_id: its id.
    :ivar name: its name.
    :ivar ram: MiB.
    :ivar disk: GiB; 0 means the image's own size.
    :ivar is_plain: it is public and has no extra specs: any host with room can have its servers.
    """

    flavor_id: str
    name: str
    ram: int
    disk: int
    is_plain: bool = True


def flavors_of(nova: Any) -> list[Flavor]:
    """Return all flavors, private ones as well.

    :param nova: novaclient.
    :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
    """
    return [Flavor(entry.id, entry.name, entry.ram, entry.disk,
                   entry.is_public is True and not getattr(entry, 'extra_specs', None))
            for entry in nova.flavors.list(is_public=None)]


def choose_flavor(flavors: list[Flavor], wanted_name: str | None, min_ram: int, min_disk: int,
                  virtual_bytes: int) -> Flavor:
    """Return the flavor for a profile boot. Pure.

    :param wanted_name: the operator's choice, or None for the smallest plain one that fits.
    :param min_ram: MiB.
    :param min_disk: GiB.
    :raises ServiceAway: if there is none yet.
    """
    disk = max(min_disk, -(-virtual_bytes // (1 << 30)))
    if wanted_name:
        for flavor in flavors:
            if flavor.name == wanted_name:
                if 0 < flavor.disk < disk:
                    # Nova would find out on the host.
                    raise exception.ServiceAway(
                        f'flavor {wanted_name} has {flavor.disk} GiB of disk, and the image needs'
                        f' {disk}; name a larger one in [bootcache]profile_flavor, or none')
                return flavor
        raise exception.ServiceAway(
            f'there is no flavor {wanted_name}; correct [bootcache]profile_flavor')
    fitting = sorted((flavor for flavor in flavors
                      if flavor.ram >= min_ram and (flavor.disk == 0 or flavor.disk >= disk)),
                     key=lambda flavor: (flavor.ram, flavor.disk, flavor.name))
    for flavor in fitting:
        if flavor.is_plain:
            return flavor
    others = ', '.join(flavor.name for flavor in fitting[:_MOST_TOLD])
    raise exception.ServiceAway(
        f'no public flavor without extra specs has {min_ram} MiB of memory and {disk} GiB of disk;'
        ' make one, or name one in [bootcache]profile_flavor'
        + (f' that is for such servers, of those that have: {others}' if others else ''))


_GONE = 'its server was stopped, moved or deleted before its boot was over'


class _RecordingLost(exception.ServiceAway):
    """The compute host that recorded is gone, or has forgotten."""


class _NotStarted(exception.ProfileBootFailed):
    """The server did not start on its host; it may on another one."""


class NovaProfileBoots:
    """Runs profile boots as Nova servers.

    :param conf: configuration of the storage service.
    :param files: has the servers' rows.
    """

    recorded_by = 'nova'

    def __init__(self, conf: cfg.ConfigOpts, files: NodeFiles):
        self._files = files
        self._conf = conf[bootcache_conf.GROUP]
        self._client = nova_client.Client(API_VERSION, session=images.session(conf),
                                          region_name=conf[AUTH_GROUP].region_name)

    def has_servers(self, image_id: str, created_before: float | None = None) -> bool:
        """Tell whether Nova has servers of an image, in any project and state.

        :param created_before: only such as Nova was asked for before that, in seconds since the
            epoch; None for all.
        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        # The oldest one tells of all.
        found = self._client.servers.list(
            search_opts={'all_tenants': True, 'image': image_id}, sort_keys=['created_at'],
            sort_dirs=['asc'], limit=1)
        return any(created_before is None
                   or timeutils.parse_isotime(server.created).timestamp() < created_before
                   for server in found)

    def compute_hosts(self) -> set[str]:
        """Return the hosts of Nova's compute services, also of cells that are away.

        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        return {service.host for service in self._client.services.list(binary='nova-compute')}

    def remove_retired(self) -> None:
        """Delete the servers of profile boots that are over, as of an earlier process.

        :raises DatabaseAway: if the database does not answer.
        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        self._files.remove_retired_of(FileKind.SERVER, self._delete)

    def tell_unnamed(self) -> None:
        """Log which servers are named as those of profile boots and have no row.

        :raises DatabaseAway: if the database does not answer.
        :raises Exception: keystoneauth's or novaclient's, if Nova cannot be asked.
        """
        there = {server.name for server in self._listed(f'^{re.escape(NAME_PREFIX)}')}
        tell_unnamed('servers of profile boots', there - self._files.known(FileKind.SERVER),
                     'if no other storage service made them, "openstack server delete" deletes'
                     ' them')

    def _listed(self, name: str) -> list[Any]:
        """Return the servers of the service's project whose names match a regular expression."""
        return list(self._client.servers.list(search_opts={'name': name}))

    def _delete(self, image_id: str, name: str) -> bool:
        """Delete a server; tell whether Nova has none of that name."""
        there = [server for server in self._listed(f'^{re.escape(name)}$') if server.name == name]
        for server in there:
            LOG.info('image %s: deleting server %s, of a profile boot that is over', image_id,
                     server.id)
            with contextlib.suppress(nova_exceptions.NotFound):
                self._client.servers.delete(server.id)
        return not there

    def run(self, image: ImageFacts, virtual_bytes: int, policy: properties.Policy,
            job: ImageJob) -> ProfileReport:
        """Boot a server, wait until its host reports that its boot is over, and delete it.

        :raises ServiceAway: if Nova cannot run one now, for what is no fault of the image.
        :raises ProfileBootFailed: with what went wrong and the cure.
        :raises Cancelled: if the job is; the server is deleted all the same.
        """
        try:
            try:
                return self._run(image, virtual_bytes, policy, job)
            except (_RecordingLost, _NotStarted) as error:
                LOG.warning('image %s: %s; the profile boot is tried once more', image.image_id,
                            error)
                job.restart()
                return self._run(image, virtual_bytes, policy, job)
        except (nova_exceptions.ClientException, ks_exceptions.ClientException) as error:
            # No image is at fault for a quota of the service project's, or a role that it lacks.
            if away.passes(error) or away.status(error) == http.HTTPStatus.FORBIDDEN:
                raise exception.ServiceAway(
                    f'Nova does not run a profile boot just now: {away.told(error)}') from error
            raise exception.ProfileBootFailed(f'Nova refused a profile boot: {error}') from error

    def _run(self, image: ImageFacts, virtual_bytes: int, policy: properties.Policy,
             job: ImageJob) -> ProfileReport:
        flavor = choose_flavor(
            flavors_of(self._client), self._conf.profile_flavor,
            max(image.min_ram, MIN_RAM), image.min_disk, virtual_bytes)
        began = time.monotonic()
        job.quota, job.boot_marker = policy.quota, policy.boot_marker
        name = f'{NAME_PREFIX}{image.image_id}-{secrets.token_hex(4)}'
        self._files.begin(image.image_id, FileKind.SERVER, name)
        try:
            server = self._client.servers.create(
                name=name, image=image.image_id,
                flavor=flavor.flavor_id, nics='none', config_drive=True,
                meta={messages.PROFILE_METADATA: job.token},
                scheduler_hints={messages.PROFILE_HINT: 'yes'},
                availability_zone=self._conf.profile_availability_zone)
            LOG.info('image %s: profile boot as server %s, flavor %s', image.image_id, server.id,
                     flavor.name)
            report = self._wait(server.id, policy, job, began)
            report = dataclasses.replace(
                report, ended_by=self._checked(server.id, policy, job, report))
        finally:
            self._end(image.image_id, name)
        LOG.info('image %s: profile boot of %.0f s ended by %s, %d bytes in %d extents',
                 image.image_id, report.boot_seconds, report.ended_by, report.working_set.bytes,
                 len(report.working_set.extents))
        return report

    def _wait(self, server_id: str, policy: properties.Policy, job: ImageJob,
              began: float) -> ProfileReport:
        """Wait for the report of the host, which sees the end of the boot."""
        active_at: float | None = None
        answered_at = began
        while job.report is None:
            job.check_cancelled()
            now = time.monotonic()
            try:
                server = self._client.servers.get(server_id)
                answered_at = now
            except (nova_exceptions.ClientException, ks_exceptions.ClientException) as error:
                # While its host records, nothing is lost by Nova's silence.
                if now - max(answered_at, job.heard_at) > _UNHEARD_SECONDS \
                        or now - began > self._conf.profile_timeout + _REPORT_SECONDS:
                    if isinstance(error, nova_exceptions.NotFound):
                        raise _RecordingLost(_GONE) from error
                    raise
                job.wait(_POLL_SECONDS)
                continue
            if server.status == 'ERROR':
                raise self._not_started(server, job)
            if server.status == 'ACTIVE':
                active_at = active_at or now
            if server.status == 'SHUTOFF' and not self._has_marked(server_id, policy, job):
                raise self._switched_off(server_id)
            if (since := job.heard_at or active_at) and now - since > _UNHEARD_SECONDS:
                raise self._unheard(server, job)
            if now - began > self._conf.profile_timeout + _REPORT_SECONDS:
                raise exception.ServiceAway(
                    f'compute host {job.host or "(none)"} did not report what it read in'
                    f' {now - began:.0f} s, and its server is {server.status}; see its nova-compute'
                    ' log')
            # The report wakes this; what else there is to see is not urgent.
            job.wait(_LOOK_SECONDS if job.heard_at else _POLL_SECONDS)
        return job.report

    @staticmethod
    def _not_started(server: Any, job: ImageJob) -> exception.BootcacheError:
        fault = getattr(server, 'fault', {}).get('message', 'no reason given.').strip()
        what = f'server of flavor {getattr(server, "flavor", {}).get("original_name", "?")}'
        if job.host:
            return _NotStarted(f'the profile boot\'s {what} did not start on {job.host}: {fault}')
        return exception.ServiceAway(
            f'Nova starts the profile boot\'s {what} on no host: {fault} If none can have it, name'
            ' another flavor in [bootcache]profile_flavor, or a zone of hosts with bootcache\'s'
            ' driver in profile_availability_zone')

    @staticmethod
    def _unheard(server: Any, job: ImageJob) -> exception.BootcacheError:
        if job.host:
            return _RecordingLost(f'compute host {job.host} stopped reporting; was nova-compute'
                                  ' restarted, or does it not reach the message bus?')
        host = getattr(server, 'OS-EXT-SRV-ATTR:host', None) or '(Nova does not say)'
        return exception.ProfileBootFailed(
            f'host {host}, on which Nova ran the profile boot, did not ask for a'
            ' recording: it has not bootcache\'s driver, or does not reach the message'
            ' bus. Name a zone of hosts with the driver ("bootcache host list") in'
            ' [bootcache]profile_availability_zone, or add BootCacheFilter to'
            ' nova-scheduler\'s enabled_filters; then "bootcache image build'
            f' {job.image_id}" tries again')

    def _checked(self, server_id: str, policy: properties.Policy, job: ImageJob,
                 report: ProfileReport) -> str:
        """Return what ended a boot, as it was reported and as Nova knows.

        :raises ProfileBootFailed: if it was none.
        """
        if report.ended_by == ending.MARKER:
            return report.ended_by
        if self._is_off(server_id) or (report.ended_by == ending.SHUTDOWN
                                       and self._was_stopped(server_id, job)):
            # Its last words may have come since the host's last look.
            if self._has_marked(server_id, policy, job):
                return ending.MARKER
            raise self._switched_off(server_id)
        if report.ended_by == ending.SHUTDOWN:
            # Nobody but an operator does that, or a host that is being emptied.
            raise _RecordingLost(_GONE)
        notbooted.check(report.ended_by, report.line, job.recorded_bytes)
        return report.ended_by

    def _was_stopped(self, server_id: str, job: ImageJob) -> bool:
        """Tell whether a server whose host says that it goes comes to be off, and does not go.

        Nova stops one whose guest has switched itself off, and says so when that is done.
        """
        began = time.monotonic()
        while time.monotonic() - began < _UNHEARD_SECONDS:
            job.check_cancelled()
            try:
                status = self._client.servers.get(server_id).status
            except nova_exceptions.NotFound:
                return False
            except (nova_exceptions.ClientException, ks_exceptions.ClientException):
                status = ''
            if status == 'SHUTOFF':
                return True
            job.wait(_POLL_SECONDS)
        return False

    def _has_marked(self, server_id: str, policy: properties.Policy, job: ImageJob) -> bool:
        return BootMarker(policy.boot_marker, f'image {job.image_id}').seen(
            lambda: self._console(server_id))

    def _switched_off(self, server_id: str) -> exception.ProfileBootFailed:
        return notbooted.switched_off(ending.upset(self._console(server_id)))

    def _is_off(self, server_id: str) -> bool:
        """Tell whether a guest has ended; Nova's status says so a quarter of a minute later."""
        try:
            if self._client.servers.get(server_id).status == 'SHUTOFF':
                return True
            _response, found = self._client.servers.diagnostics(server_id)
            return found.get('state') in ('shutdown', 'crashed')
        except (nova_exceptions.ClientException, ks_exceptions.ClientException):
            return False

    def _console(self, server_id: str) -> str:
        try:
            return self._client.servers.get_console_output(server_id, length=200) or ''
        except (nova_exceptions.ClientException, ks_exceptions.ClientException):
            # Not there yet, Nova is away, or this cloud has none; silence ends such boots.
            return ''

    def _end(self, image_id: str, name: str) -> None:
        """Delete the server of a profile boot that is over: now, or when Nova answers."""
        self._files.abandon(image_id, name)
        try:
            self._delete(image_id, name)
        except Exception as error:
            LOG.error('server %s of a profile boot could not be deleted; it is tried again in'
                      ' [bootcache]poll_interval, %d s: %s', name, self._conf.poll_interval, error)
