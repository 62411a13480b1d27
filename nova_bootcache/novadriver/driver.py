"""The compute driver: Nova's libvirt driver with another image backend, and servers that settle.

Each override has its reason in its docstring. What it does not look at it passes on as it came, as
Nova's releases differ. tests/unit/nova_bootcache holds the list, to check an upgrade in a minute.
"""

import functools
import os
from typing import Any

from nova import exception as nova_exception
from nova.compute import power_state, vm_states
from nova.virt import event as virtevent
from nova.virt import hardware
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming
from bootcache.http.listener import HttpListener
from nova_bootcache import conf as bootcache_nova_conf
from nova_bootcache import monitoring
from nova_bootcache.chains import chainstores
from nova_bootcache.chains.chainstores import CHAIN_SECONDS
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.chains.hostwarmer import HostWarmer
from nova_bootcache.novadriver import directsnapshots, diskconf, errorpolicy
from nova_bootcache.novadriver.directsnapshots import SnapshottingDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2, aborting, lazy
from nova_bootcache.novadriver.novaservers import NovaServers
from nova_bootcache.novadriver.rootdisks import RootDisks
from nova_bootcache.published import warmth
from nova_bootcache.published.holdings import PublishedHoldings
from nova_bootcache.settling.settler import Settler
from nova_bootcache.standstill.standingservers import StandingServers
from nova_bootcache.upkeep import HostUpkeep

LOG = logging.getLogger(__name__)
CONF = libvirt_driver.CONF

# Flavors and images can require it: resources trait:CUSTOM_BOOTCACHE=required.
TRAIT = 'CUSTOM_BOOTCACHE'
_WAITS = ('its guest is paused by an I/O error, and waits for its disk; it can be moved when it has'
          ' been resumed')


class BootCacheLibvirtDriver(SnapshottingDriver):
    """libvirt driver whose servers boot from cache images where there are some."""

    # From Nova's start on, if anybody is to watch the host.
    _listener: HttpListener | None = None

    def __init__(self, virtapi: Any, read_only: bool = False, *args: Any, **kwargs: Any):
        """Put our image backend in the place of Nova's for qcow2, and let snapshots see it."""
        super().__init__(virtapi, read_only, *args, **kwargs)
        bootcache_nova_conf.register_opts(CONF)
        bootcache_nova_conf.check(CONF)
        group, bandwidth = CONF[bootcache_conf.GROUP], bootcache_nova_conf.bandwidth
        directory = group.cache_directory or os.path.abspath(
            os.path.join(CONF.instances_path, '_bootcache'))
        servers = self._servers = NovaServers(self._host)
        self.bootcache = ComputeHost(CONF, directory, diskconf.opens_directly(CONF),
                                     servers.base_directory)
        self.settler = Settler(self.bootcache, servers, bandwidth(CONF, 'settle_bandwidth'),
                               group.settle_delay, bandwidth(CONF, 'landing_bandwidth'))
        self._disks = RootDisks(self.image_backend, self.settler.recover_server)
        self.standing = StandingServers(servers, self.bootcache.chains,
                                        self.bootcache.cache.holds_path, self.bootcache.boots)
        self.holdings = PublishedHoldings(self.bootcache, servers.base_directory,
                                          self.settler.unsettled.report, self.standing.report)
        self.upkeep = HostUpkeep(self.bootcache, self.holdings)
        monitoring.sample(self.bootcache, self.settler.unsettled, self.standing.report)
        self.warming = HostWarmer(self.bootcache, bandwidth(CONF, 'warm_bandwidth'))
        # Whether operations wait for the gateway: not each that Nova's start does while it is away.
        self._is_patient = self._is_stopped = False
        backend = BootCacheQcow2.bound_to(self.bootcache, self.direct)
        table = self.image_backend.BACKEND
        for name, stock in list(table.items()):
            if stock is imagebackend.Qcow2:
                table[name] = backend
        directsnapshots.allow_on(self.bootcache.cache)
        errorpolicy.add_to_migrations()

    def _serves(self) -> bool:
        """Tell whether new servers of this host boot from cache images, where there are some."""
        return self.bootcache.serving.is_on and diskconf.serves(CONF)

    def init_host(self, host: str, *args: Any, **kwargs: Any) -> None:
        """Start the gateway and mend disks first: Nova's own start may boot servers."""
        for warning in diskconf.warnings(CONF):
            LOG.warning('bootcache: %s', warning)
        if reason := self._servers.shared_storage(self.bootcache.cache.directory, host):
            self.bootcache.serving.refuse(reason)
        self.bootcache.start(host)
        self.upkeep.start()
        self._listener = monitoring.listen(CONF, self.bootcache)
        self._wait_until_ready()
        super().init_host(host, *args, **kwargs)
        if not reason:
            # Needs the connection to libvirt; before anybody lets servers go on.
            self.settler.recover()
            self.settler.start()
        self.standing.start()

    def _wait_until_ready(self) -> None:
        """Wait until disks can be opened, where Nova resumes servers: it would put them to ERROR.

        :raises BootcacheError: if nova-compute is told to stop meanwhile.
        """
        if not CONF.resume_guests_state_on_host_boot or not self.settler.has_chained():
            return
        try:
            chainstores.patiently(self.bootcache.ensure_ready, CHAIN_SECONDS, 'Nova\'s start',
                                  lambda: not self._is_stopped)
            self._is_patient = True
        except exception.BootcacheError as error:
            if self._is_stopped:
                raise
            LOG.error('bootcache: Nova\'s start goes on after %d s, and servers that it resumes and'
                      ' that need the gateway go to ERROR: %s. Once bootcache-gateway and'
                      ' bootcache-connectors run, start each with "openstack server reboot --hard"',
                      CHAIN_SECONDS, error)

    def spawn(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Start it from a disk that is made the stock way if QEMU cannot open what is below it.

        A forgotten rule of AppArmor shows only here. Nova has cleaned up after the first try.
        """
        path = os.path.join(libvirt_utils.get_instance_path(instance), 'disk')
        with aborting(instance), self.settler.held(instance.uuid), \
                self.standing.starting(instance.uuid), \
                self.bootcache.serving.starting(instance.uuid):
            self.bootcache.serving.socket.start(
                instance.uuid, functools.partial(super().spawn, context, instance, *args, **kwargs),
                lambda: self.bootcache.serving.did_not_start(instance.uuid, path))

    def finish_migration(self, context: Any, migration: Any, instance: Any, *args: Any,
                         **kwargs: Any) -> None:
        """Do the same with one from another host: its disk gets a base of stock Nova's below it."""
        with self.settler.held(instance.uuid), self.standing.starting(instance.uuid):
            self.bootcache.serving.socket.start(
                instance.uuid, functools.partial(super().finish_migration, context, migration,
                                                 instance, *args, **kwargs),
                functools.partial(self._disks.make_stock, instance))

    def emit_event(self, event: Any, *args: Any, **kwargs: Any) -> None:
        """See why a guest is paused; the thread is libvirt's, and has others to tell."""
        if isinstance(event, virtevent.LifecycleEvent) \
                and event.get_transition() == virtevent.EVENT_LIFECYCLE_PAUSED:
            self.standing.wake()
        super().emit_event(event, *args, **kwargs)

    def cleanup_host(self, *args: Any, **kwargs: Any) -> None:
        """Stop our threads; what is under way is given up."""
        self._is_stopped = True
        if self._listener is not None:
            self._listener.stop()
        self.settler.stop()
        self.standing.stop()
        self.upkeep.stop()
        self.bootcache.stop()
        super().cleanup_host(*args, **kwargs)

    # Operations on a server have precedence over its settling.

    def _open_chain(self, instance: Any, kept_in: str = '', guest_waits: bool = False) -> None:
        """See to it that a server's root disk can be opened: see ``RootDisks.open_chain``.

        :raises InternalError: if it cannot.
        """
        # Nova's start tries one server after the other: each would wait for a gateway that is away.
        self._disks.open_chain(instance, CHAIN_SECONDS if self._is_patient else 0, guest_waits,
                               kept_in)

    def destroy(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling; report what its boot read, before and once its domain is gone."""
        self.bootcache.boots.server_goes(instance.uuid)
        with self.settler.held(instance.uuid):
            try:
                super().destroy(context, instance, *args, **kwargs)
            finally:
                self.bootcache.recordings.finish(instance.uuid)

    def power_off(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling. A disk that is sent next is named as stock Nova names it."""
        self.bootcache.boots.server_goes(instance.uuid)
        with self.settler.held(instance.uuid):
            super().power_off(instance, *args, **kwargs)
            self._disks.name_stock_base()

    def reboot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling."""
        with self.settler.held(instance.uuid), self.standing.starting(instance.uuid):
            super().reboot(context, instance, *args, **kwargs)

    def _soft_reboot(self, instance: Any, *args: Any, **kwargs: Any) -> bool:
        """Leave one to a hard reboot whose disk may have another one's name: Nova starts it."""
        return not self._disks.why_half_done(instance) and bool(
            super()._soft_reboot(instance, *args, **kwargs))

    def pause(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling, which lets the guest go on when it ends; Nova's lock is not taken.

        Of one that is paused by an error libvirt does not note that its user wants it to.
        """
        with self.settler.held(instance.uuid), self.standing.kept(instance.uuid):
            super().pause(instance, *args, **kwargs)

    def unpause(self, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling, which may pause the guest; Nova's lock is not taken."""
        with self.settler.held(instance.uuid):
            self._disks.end_before_it_goes_on(instance)
            super().unpause(instance, *args, **kwargs)

    def _hard_reboot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """See that the chain can be opened: Nova looks at it only with a user's token.

        Starting a server and resuming those that ran when the host went down come here too. A QEMU
        that does not answer is ended before its disk is put right, as Nova ends it in any case.
        """
        with self.settler.held(instance.uuid), self.standing.starting(instance.uuid):
            if self._disks.waits_for_qemu(instance):
                self._destroy(instance)
            self._open_chain(instance, guest_waits=True)
            super()._hard_reboot(context, instance, *args, **kwargs)

    def get_info(self, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Take one that is paused by an error for one that runs, where Nova starts it.

        Nova looks twice a second, without end: the guest may stop before it does so at all.
        """
        found = super().get_info(instance, *args, **kwargs)
        # By name, as Nova's own tests have it.
        if found.state == power_state.PAUSED and self.standing.is_started(instance['uuid']):
            return hardware.InstanceInfo(power_state.RUNNING, found.internal_id)
        return found

    def suspend(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling. One that is paused by an error is to come back running."""
        with self.settler.held(instance.uuid):
            super().suspend(context, instance, *args, **kwargs)
            # Some snapshots come here.
            if lazy(instance, 'vm_state') not in (None, vm_states.PAUSED):
                self.standing.comes_back_running(instance.uuid)

    def resume(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """See that the chain can be opened: the host may have been down meanwhile, or upgraded.

        If it cannot, the server stays suspended: after another error Nova would put it to ERROR.
        """
        with self.settler.held(instance.uuid), self.standing.starting(instance.uuid):
            try:
                self._disks.end_half_done(instance)
                to_wait = errorpolicy.with_policies \
                    if self._disks.stands_on_cache_image(instance) else None
                self._open_chain(instance, guest_waits=self.standing.comes_back_running(
                    instance.uuid, to_wait))
            except nova_exception.InternalError as error:
                raise nova_exception.InstanceFaultRollback(error) from error
            super().resume(context, instance, *args, **kwargs)

    def rescue(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling; the rescue system waits at the server's own disk as the server does."""
        # Nova describes both anew.
        with self.bootcache.boots.copying(instance.image_ref), self.settler.held(instance.uuid):
            self._open_chain(instance, guest_waits=True)
            super().rescue(context, instance, *args, **kwargs)

    def unrescue(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """See that the chain can be opened; Nova starts what libvirt knew before the rescue."""
        with self.settler.held(instance.uuid):
            self._disks.end_half_done(instance)
            self._open_chain(instance, guest_waits=self._disks.waits_when_unrescued(instance))
            super().unrescue(context, instance, *args, **kwargs)

    def snapshot(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """End its settling, which Nova would kill; the chain is read here, which is no boot."""
        with self.bootcache.boots.copying(instance.image_ref), self.settler.held(instance.uuid):
            self._open_chain(instance)
            super().snapshot(context, instance, *args, **kwargs)

    def live_migration(self, context: Any, instance: Any, dest: Any, post_method: Any,
                       recover_method: Any, block_migration: Any = False, migrate_data: Any = None,
                       *args: Any, **kwargs: Any) -> None:
        """End its settling: with a block job that does not end the server would go to ERROR.

        And what is watched of its boot, as its disk is read here. One that is paused by an error
        goes on first: libvirt would have it stand on the other host as if its user had paused it.
        """
        goes_on = self.standing.let_go_on(instance.uuid, CHAIN_SECONDS)
        with self.bootcache.boots.copying(instance.image_ref), self.settler.held(instance.uuid):
            if why := self._disks.why_half_done(instance) if goes_on else _WAITS:
                LOG.warning('bootcache: server %s is not moved: %s', instance.uuid, why)
                # After an error Nova would put it to ERROR: nothing has moved yet.
                recover_method(context, instance, dest, migrate_data)
                return
            super().live_migration(context, instance, dest, post_method, recover_method,
                                   block_migration, migrate_data, *args, **kwargs)

    def post_live_migration_at_destination(self, context: Any, instance: Any, *args: Any,
                                           **kwargs: Any) -> None:
        """Let it go on if it was paused when it left: see ``live_migration``."""
        super().post_live_migration_at_destination(context, instance, *args, **kwargs)
        if lazy(instance, 'vm_state') not in (None, vm_states.PAUSED):
            self.standing.has_arrived(instance.uuid)

    def check_can_live_migrate_source(self, context: Any, instance: Any, *args: Any,
                                      **kwargs: Any) -> Any:
        """Refuse one whose guest waits for its disk: see ``live_migration``."""
        if self.standing.is_standing(instance.uuid):
            raise nova_exception.MigrationPreCheckError(reason=_WAITS)
        return super().check_can_live_migrate_source(context, instance, *args, **kwargs)

    def pre_live_migration(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """See that the chain that it gets here can be opened, before anything moves."""
        found = super().pre_live_migration(context, instance, *args, **kwargs)
        self._open_chain(instance)
        return found

    def migrate_disk_and_power_off(self, context: Any, instance: Any, *args: Any,
                                   **kwargs: Any) -> Any:
        """Send the disk in the form that any host knows, with this driver or stock Nova's.

        The one that is kept here for a revert stays on its cache image. One that cannot be sent so
        does not leave, and goes on: a host with stock Nova's driver could not start it.
        """
        with self.bootcache.boots.copying(instance.image_ref), self.settler.held(instance.uuid):
            try:
                self._disks.end_half_done(instance)
            except nova_exception.InternalError as error:
                # The server stays as it is, and here.
                raise nova_exception.InstanceFaultRollback(error) from error
            runs = lazy(instance, 'power_state') == power_state.RUNNING
            try:
                with self._disks.leaving(instance):
                    return super().migrate_disk_and_power_off(context, instance, *args, **kwargs)
            except exception.BootcacheError as error:
                if runs:
                    # As Nova calls it: after the destination and the flavor.
                    self.power_on(context, instance, *args[2:4])
                raise nova_exception.InstanceFaultRollback(nova_exception.MigrationError(
                    reason=str(error))) from error

    def finish_revert_migration(self, context: Any, instance: Any, *args: Any,
                                **kwargs: Any) -> None:
        """See that the chain can be opened: Nova starts the server from the disk as it is."""
        with self.settler.held(instance.uuid), self.standing.starting(instance.uuid):
            kept = self._disks.kept(instance)
            if os.path.exists(kept):
                self._open_chain(instance, os.path.dirname(kept), guest_waits=True)
            super().finish_revert_migration(context, instance, *args, **kwargs)

    # The host.

    def get_available_resource(self, nodename: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Publish what this host holds, for the scheduler's weigher and filter."""
        # Nova's start is over.
        self._is_patient = True
        resources: dict[str, Any] = super().get_available_resource(nodename, *args, **kwargs)
        if self._serves():
            try:
                room = warmth.room(diskconf.statistics(self.virtapi, nodename))
                # In Nova 31.0 the stock driver has none of its own.
                resources.setdefault('stats', {})[warmth.STATS_KEY] = self.holdings.published(room)
            except Exception:
                # The host counts without: nothing that is here may take it out of Nova's count.
                LOG.exception('bootcache: what this host holds is not published')
        return resources

    def update_provider_tree(self, provider_tree: Any, nodename: str, *args: Any,
                             **kwargs: Any) -> None:
        """Reserve the tiers' space, and tell by a trait that this driver runs here."""
        super().update_provider_tree(provider_tree, nodename, *args, **kwargs)
        serves = self._serves()
        try:
            # One that serves no more has cache images for as long as servers stand on them.
            if serves or self.bootcache.cache.entries():
                diskconf.reserve(provider_tree, nodename,
                                   self.bootcache.room.quotas(CONF.instances_path))
        except OSError as error:
            LOG.warning('bootcache: the tiers\' space is not reserved in Placement: %s', error)
        (provider_tree.add_traits if serves else provider_tree.remove_traits)(nodename, TRAIT)

    def cache_image(self, context: Any, image_id: str, *args: Any, **kwargs: Any) -> bool:
        """Warm this host by the cache image; stock Nova fetches the whole image."""
        base = os.path.join(CONF.instances_path, CONF.image_cache.subdirectory_name,
                            naming.cache_file_name(image_id))
        stock = functools.partial(super().cache_image, context, image_id, *args, **kwargs)
        # Where servers boot from the full base, to have that is to be warm.
        goes_stock = os.path.exists(base) or not self._serves()
        return bool(self.warming.cache_image(image_id, goes_stock, stock))

    def manage_image_cache(self, context: Any, all_instances: Any, *args: Any,
                           **kwargs: Any) -> None:
        """Remove our unused files as well; Nova's manager looks at ``_base`` only."""
        super().manage_image_cache(context, all_instances, *args, **kwargs)
        if CONF.image_cache.remove_unused_base_images and not self.bootcache.serving.refusal:
            self.bootcache.room.remove_unused(
                (instance.image_ref for instance in all_instances),
                CONF.image_cache.remove_unused_original_minimum_age_seconds)
