"""The storage service's RPC API: its client and what its messages mean."""

import secrets
from collections.abc import Callable
from importlib import metadata
from typing import Any

import oslo_messaging as messaging
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import optionfault
from bootcache.bus import BusOpening, within
from bootcache.exception import ConfigurationError
from bootcache.util.backoff import CircuitBreaker

# In which a host is told from whom it may have a file; else it copies, five seconds late at most.
_EXCHANGE_SECONDS = 4
# How a file came that was asked for by exchange: all of it, in part, or not.
EXCHANGED = 'exchanged'
STALLED = 'stalled'
COPIED = 'copied'
WAYS = (EXCHANGED, STALLED, COPIED)
# Givers that are named in a report of it.
MOST_GIVERS = 64

EXCHANGE = 'bootcache'
TOPIC = 'bootcache'
VERSION = '1.16'
# Of a message's context: 32 hexadecimal digits that its process has made.
SENDER = 'sender'
# Added to a client's first call's limit.
_OPENING_SECONDS = 2
# The entry points of oslo.messaging's drivers.
_DRIVERS = 'oslo.messaging.drivers'
# A server that boots does not wait for longer to hear how, whatever rpc_timeout is.
_BOOT_SECONDS = 5
# After so many calls in a row without an answer, nobody asks for so many seconds.
_SILENT_CALLS = 2
_SILENCE_SECONDS = 10
# Of no image: what is asked for to see whether anybody answers.
NO_IMAGE = '00000000-0000-0000-0000-000000000000'
# Key of a server's metadata whose value proves it to be a profile boot (plan_boot's token).
PROFILE_METADATA = 'bootcache_profile'
# The hint by which nova-scheduler knows one; it proves nothing.
PROFILE_HINT = 'bootcache_profile'

# Answers of plan_boot.
ACTION_CACHE = 'cache'
ACTION_COLD = 'cold'
ACTION_RECORD = 'record'
ACTION_WAIT = 'wait'
ACTION_STOCK = 'stock'

# What came of warming a host: Nova's own words for its precache API, and what there is before.
WARM_WAITING = 'waiting'
WARM_CACHED = 'cached'
WARM_EXISTING = 'existing'
WARM_UNSUPPORTED = 'unsupported'
WARM_ERROR = 'error'
WARM_OUTCOMES = (WARM_CACHED, WARM_EXISTING, WARM_UNSUPPORTED, WARM_ERROR)


def target(**extra: Any) -> messaging.Target:
    """Return the RPC target; the exchange is ours, as Nova and Glance default to their own."""
    return messaging.Target(exchange=EXCHANGE, topic=TOPIC, version=VERSION, **extra)


def get_transport(conf: cfg.ConfigOpts) -> messaging.Transport:
    """Return the transport that ``[bootcache]transport_url`` names.

    :raises ConfigurationError: if it is no URL, or there is no transport of its kind.
    """
    url = conf[bootcache_conf.GROUP].transport_url
    option = f'[{bootcache_conf.GROUP if url else "DEFAULT"}]transport_url'
    like = 'give one as in rabbit://user:password@host:5672/'
    try:
        kind = str(messaging.TransportURL.parse(conf, url).transport)
        # stevedore would log a line of its own.
        if metadata.entry_points(group=_DRIVERS, name=kind.partition('+')[0]):
            return messaging.get_rpc_transport(conf, url=url)
    except messaging.DriverLoadFailure as error:
        kind = str(error.driver)
    except cfg.ConfigSourceValueError as error:
        raise ConfigurationError(optionfault.told(error, conf)) from None
    except (messaging.InvalidTransportURL, ValueError):
        # Their messages have the password.
        place = conf.get_location('transport_url', bootcache_conf.GROUP if url else None)
        raise ConfigurationError(f'{option} ({place.detail}) is no URL of a message bus; {like},'
                                 ' with special characters of the password as %XX') from None
    raise ConfigurationError(f'{option} begins with {kind}://, for which oslo.messaging has no'
                             f' driver here; {like}')


class StorageAPI:
    """Client of the storage service.

    Calls raise oslo.messaging's MessagingTimeout if nobody answers, MessageDeliveryFailure if the
    bus is away, or nobody has answered just now, and RemoteError for errors of the service.

    :param conf: configuration with the shared options registered.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        # By it the service tells processes apart, so nobody else gets to know it.
        self._context = {SENDER: secrets.token_hex(16)}
        self._client = messaging.get_rpc_client(get_transport(conf), target())
        self._timeout = conf[bootcache_conf.GROUP].rpc_timeout
        self._breaker = CircuitBreaker(_SILENT_CALLS, _SILENCE_SECONDS)
        self._opening = BusOpening(
            lambda seconds: self._client.prepare(timeout=seconds, retry=0).call(
                self._context, 'get_image', image_id=NO_IMAGE))

    def _call(self, method: str, *, seconds: float | None = None, counts: bool = True,
              **arguments: Any) -> Any:
        limit = min(seconds or self._timeout, self._timeout)

        def call() -> Any:
            # Without a retry limit a call waits for ever for a bus that is away.
            client = self._client.prepare(timeout=limit, retry=1)
            return client.call(self._context, method, **arguments)

        def ask() -> Any:
            self._opening.wait(limit + _OPENING_SECONDS)
            return within(limit, call)

        return self._unless_silent(ask, counts)

    def _cast(self, method: str, **arguments: Any) -> None:
        def cast() -> None:
            self._client.prepare(retry=1).cast(self._context, method, **arguments)

        self._unless_silent(lambda: within(self._timeout, cast))

    def _unless_silent(self, ask: Callable[[], Any], counts: bool = True) -> Any:
        """Ask, unless nobody has answered just now.

        :param counts: whether it tells of the service if this is not answered.
        """
        if not self._breaker.may_ask():
            raise messaging.MessageDeliveryFailure(
                'nobody has answered just now; it is tried again in'
                f' {self._breaker.seconds_left():.0f} s')
        try:
            answer = ask()
        except (messaging.MessagingTimeout, messaging.MessageDeliveryFailure):
            if counts:
                self._breaker.failed()
            raise
        except messaging.RemoteError as error:
            self._breaker.answered()
            # Its own text has the service's traceback as well, which ends with the same words.
            error.args = f'the storage service refuses: {error.value}',
            raise
        self._breaker.answered()
        return answer

    def image_registered(self, image_id: str) -> None:
        """Tell that an image is being imported; the service waits until it is active."""
        self._cast('image_registered', image_id=image_id)

    def plan_boot(self, image_id: str, host: str, server_id: str,
                  profile_token: str | None, owner: str = '',
                  certificate: str = '') -> dict[str, Any]:
        """Ask how a server is to boot from an image.

        :param host: the compute host's name.
        :param profile_token: what the server's metadata says to prove that it is a profile boot.
        :param owner: the server's project, empty if it is not known.
        :param certificate: the distinguished name in the host's, empty if it has none; what is
            named of the exporter then serves nobody else, where the service has such.
        :returns: ``action`` (cache, cold, record, wait or stock) and ``reason`` for the last two;
            where the base is served also ``virtual_bytes``, ``image_hash``, ``server`` (host and
            port of the exporter), ``tls`` (whether it speaks TLS, and nothing else),
            ``base_export`` and ``pinned``, and where the base is in Ceph as well ``rbd``
            (:class:`bootcache.ceph.places.RbdOrigin`); for cache ``cache_export``,
            ``cache_image`` (:class:`bootcache.manifest.CacheInfo`), ``medium`` (disk or memory),
            ``has_memory``, ``others`` (whether another host was told of this file, and may give
            it), ``generation`` (a host that holds an earlier one is to let go of it) and
            ``verified`` (the file is known to be as it was built; else a host looks at all of it
            before a server reads from it); with wait ``ready_in`` (seconds at least until the
            base is here, None if nobody knows), and the base's place if a cache image is about to
            be built; ``signature`` (by what the base was verified; empty if it was not, see
            bootcache/signatures.py); of a snapshot's cache image ``difference``
            (:class:`bootcache.difference.CacheDifference`, and its ``export``); and ``watch``
            (quota in bytes, linger, silence and timeout in seconds, marker) if a report of what
            the boot reads is wanted.
        """
        answer: dict[str, Any] = self._call(
            'plan_boot', seconds=_BOOT_SECONDS, image_id=image_id, host=host, server_id=server_id,
            profile_token=profile_token, owner=owner, certificate=certificate)
        return answer

    def boot_progress(self, image_id: str, profile_token: str, recorded_bytes: int) -> None:
        """Tell how far a profile boot is.

        :param recorded_bytes: size of the growing store.
        """
        self._cast('boot_progress', image_id=image_id, profile_token=profile_token,
                   recorded_bytes=recorded_bytes)

    def report_boot(self, image_id: str, image_hash: str, host: str, granularity: int,
                    extents: list[list[Any]], ended_by: str, boot_seconds: float,
                    profile_token: str | None = None, line: str = '',
                    server_id: str = '') -> None:
        """Report what a server's boot read from the base for the first time on its host.

        One that was taken already counts no more: it is sent again where the answer was lost.

        :param image_hash: of the content that it read, as ``plan_boot`` told it.
        :param granularity: bytes to which the record is rounded.
        :param extents: ``[offset, length, seconds]``, in first-read order; never data.
        :param ended_by: marker, silence, quota, timeout or shutdown; of a profile boot also stuck
            (its console says that it does not come up) and nothing (it read next to nothing).
        :param boot_seconds: from the overlay's making to the boot's end.
        :param profile_token: of a profile boot, None for servers of people.
        :param line: of the console, where that tells that the guest is stuck.
        :param server_id: the server, as ``plan_boot`` was told it.
        """
        self._call('report_boot', image_id=image_id, image_hash=image_hash, host=host,
                   granularity=granularity, extents=extents, ended_by=ended_by,
                   boot_seconds=boot_seconds, profile_token=profile_token, line=line,
                   server_id=server_id)

    def report_holdings(self, host: str, report: dict[str, Any] | None) -> dict[str, Any]:
        """Tell what a host holds, and hear what it is to let go of.

        The last uses are for the cloud-level eviction (SC13 section 3.4).

        :param report: ``images``: by image id the time of the last use in seconds since the epoch,
            the tier (disk or memory), the generation that ``plan_boot`` told, and the file's
            bytes; ``unsettled``: None, or ``servers`` (how many of the host's depend on bootcache)
            and ``named`` (``[server, why]`` of some), and ``waiting``, of those whose guests stand
            still: ``servers`` (how many), ``named`` (``[server, what for, since]`` of some, in
            seconds since the epoch); ``quotas``: bytes by tier; ``needs``: ids of images whose base
            the host's servers may read; ``bases``: ``bases`` (how many the host reads now) and
            ``named`` (``[image id, way, connector, since, answered]`` of some: the storage node's
            address or the place in Ceph, both texts empty if it can be read by no way; both times
            in seconds since the epoch; ``answered`` is None while the base's reads are answered,
            else when the last one was, 0 if none was); ``rpc``: the version of this API that the
            host speaks;
            ``certificates_end``: when the first of the host's certificates ends, or has ended, in
            seconds since the epoch, None if it has none.
            None if nothing has changed since the last report.
        :returns: ``drop``: ids of images whose cache image is to go as soon as no server of the
            host needs it; ``resend``: the service does not know this process' last report.
        """
        answer: dict[str, Any] = self._call('report_holdings', host=host, report=report)
        return answer

    def report_warm(self, image_id: str, host: str, outcome: str, reason: str) -> None:
        """Tell what came of Nova's request to warm a host.

        :param outcome: one of ``WARM_OUTCOMES``.
        :param reason: of an error.
        """
        self._cast('report_warm', image_id=image_id, host=host, outcome=outcome, reason=reason)

    def promote_image(self, image_id: str) -> None:
        """Ask the storage node to copy an image's cache image to its memory tier."""
        self._cast('promote_image', image_id=image_id)

    def pin_image(self, image_id: str, pinned: bool) -> bool:
        """Keep an image's cache image in every tier that it is in, or no longer.

        :returns: False if the image is not known.
        """
        answer: bool = self._call('pin_image', image_id=image_id, pinned=pinned)
        return answer

    def serve_stored(self, image_id: str, host: str, certificate: str = ''
                     ) -> dict[str, Any] | None:
        """Have an image's stored bytes served, to complete a local base from.

        :param host: the compute host's name.
        :param certificate: as of :meth:`plan_boot`.
        :returns: ``server`` (host and port of the exporter), ``tls`` (whether it speaks TLS, and
            nothing else), ``export``, ``stored_bytes``,
            ``image_hash``, ``image_format`` (qcow2 or raw), ``signature`` (as of ``plan_boot``)
            and ``settle`` (whether the image's servers are to be settled); None if the image has no
            base here, or it is not served, and only ``settle`` if they are not to be even so.
        """
        answer: dict[str, Any] | None = self._call(
            'serve_stored', image_id=image_id, host=host, certificate=certificate)
        return answer

    def list_hosts(self) -> list[dict[str, Any]]:
        """Return the hosts that have reported: ``host``, ``seen`` (seconds ago), ``images``,
        ``bytes`` and ``quotas`` (both by tier), ``unsettled`` (how many of its servers depend on
        bootcache, None if it does not tell), ``named`` (``[server, why]`` of some of these),
        ``waiting`` (as the host reported it, None if it does not tell), ``rpc`` and
        ``certificates_end`` (both likewise)."""
        answer: list[dict[str, Any]] = self._call('list_hosts')
        return answer

    def host_bases(self, host: str) -> dict[str, Any] | None:
        """Return how a host reads bases, or None if the host has not reported.

        :param host: the compute host's name.
        :returns: ``seen`` (seconds since the report), and ``bases``, as the host reported it, None
            if it does not tell.
        """
        answer: dict[str, Any] | None = self._call('host_bases', host=host)
        return answer

    def image_hosts(self, image_id: str) -> dict[str, Any] | None:
        """Return where an image's cache image is, or None if the image is not known.

        :returns: ``storage`` (disk, memory or None), ``storage_bytes`` (of the storage node's
            file), ``hosts``: a list of ``host``, ``medium``, ``bytes``, ``last_use`` (seconds since
            the epoch), ``seen`` (seconds since the host's report) and ``leaving`` (it is to let go
            of it); ``exchanged``, of hosts that asked for a file by exchange, as they tell:
            ``file`` (cache image, full base), ``size``, ``to``,
            ``way`` (one of ``WAYS``), ``copied`` (bytes from the storage node's
            exporter) and ``got`` (``[host, bytes]``, the host empty for the storage node's
            exchange).
        """
        answer: dict[str, Any] | None = self._call('image_hosts', image_id=image_id)
        return answer

    def evict_image(self, image_id: str, hosts: list[str] | None) -> list[str]:
        """Have hosts let go of an image's cache image, as soon as no server of theirs needs it.

        :param hosts: names of hosts; None for all of them, and the storage node's memory tier.
        :returns: names of the hosts that hold it.
        """
        answer: list[str] = self._call('evict_image', image_id=image_id, hosts=hosts)
        return answer

    def warm_image(self, image_id: str, aggregates: list[str]) -> list[dict[str, Any]]:
        """Have Nova precache an image on the hosts of aggregates.

        :param aggregates: names.
        :returns: as of :meth:`get_warming`.
        """
        answer: list[dict[str, Any]] = self._call('warm_image', image_id=image_id,
                                                  aggregates=aggregates)
        return answer

    def get_warming(self, image_id: str) -> list[dict[str, Any]]:
        """Return how far the warming of an image is, for each aggregate asked for.

        :returns: a list of ``aggregate``, ``done``, ``reason`` (why Nova cannot be asked, or why
            it ended without hosts; else empty), and ``hosts``: by name ``outcome`` (waiting or one
            of ``WARM_OUTCOMES``), ``reason`` and ``attempts``.
        """
        answer: list[dict[str, Any]] = self._call('get_warming', image_id=image_id)
        return answer

    def list_images(self) -> list[dict[str, Any]]:
        """Return all images' manifests, with the progress of what is in hand."""
        answer: list[dict[str, Any]] = self._call('list_images')
        return answer

    def get_image(self, image_id: str) -> dict[str, Any] | None:
        """Return an image's manifest, with its progress, or None if it is not known.

        ``kept_for`` is a list of what may need its base: hosts, and, while a base is to go and
        cannot, what else was found.
        """
        answer: dict[str, Any] | None = self._call('get_image', image_id=image_id)
        return answer

    def get_working_set(self, image_id: str) -> dict[str, Any] | None:
        """Return an image's working set document, or None if it has none."""
        answer: dict[str, Any] | None = self._call('get_working_set', image_id=image_id)
        return answer

    def build_image(self, image_id: str) -> None:
        """Record and build an image anew, also if it failed or is ready."""
        self._call('build_image', image_id=image_id)

    def delete_image(self, image_id: str) -> bool:
        """Forget an image's cache image and working set; Glance's image is not touched.

        :returns: False if nothing was known of it.
        """
        answer: bool = self._call('delete_image', image_id=image_id)
        return answer

    # Of the exchange.

    def exchange_cache(self, image_id: str, host: str, sha256: str, address: str, port: int,
                       rack: str) -> dict[str, Any] | None:
        """Ask from whom a cache image can be had that ``plan_boot`` offers; others are told of us.

        :param sha256: of its file.
        :param address: of this host's exchange, as is the port.
        :param rack: that the host is in; empty if it does not know.
        :returns: ``torrent`` (in base64), ``peers`` (``[address, port]`` of each) and ``reserve``
            (likewise, for when these do not go on); None if it is to be copied.
        """
        answer: dict[str, Any] | None = self._call(
            'exchange_cache', seconds=_EXCHANGE_SECONDS,
            # It waits for another process than the service's own.
            counts=False, image_id=image_id, host=host, sha256=sha256, address=address, port=port,
            rack=rack)
        return answer

    def exchange_base(self, image_id: str, host: str, image_hash: str, address: str, port: int,
                      rack: str) -> dict[str, Any] | None:
        """Ask from whom an image's stored file can be had, as ``exchange_cache`` does.

        :param image_hash: of the file, as ``serve_stored`` tells it.
        :returns: also ``slot``: whether the storage node is among those, and the host has a slot
            for that, as by ``take_slot``. Or ``{'wait': True}``: the file is being read, and it is
            to be asked again; with ``again``: nobody else has it yet, and others have all slots;
            it is to be asked again in so many seconds.
        """
        answer: dict[str, Any] | None = self._call(
            'exchange_base', seconds=_EXCHANGE_SECONDS, counts=False, image_id=image_id, host=host,
            image_hash=image_hash, address=address, port=port, rack=rack)
        return answer

    def take_slot(self, host: str) -> float:
        """Ask for leave to get full bases from the storage node.

        :returns: 0 if the host has it. If others do: the seconds in which to ask again; the host
            keeps its place among those that wait if it does.
        """
        answer: float = self._call('take_slot', host=host)
        return answer

    def hold_slot(self, host: str, holds: bool) -> None:
        """Tell that a host uses its slot, or (``holds`` False) that it needs none any more."""
        self._cast('hold_slot', host=host, holds=holds)

    def report_exchange(self, image_id: str, host: str, file: str, way: str,
                        got: list[list[Any]], copied: int, gives: bool) -> None:
        """Tell how a file came that was asked for by exchange; all of it is there.

        :param file: the SHA-256 of a cache image, or the hash of a stored file.
        :param way: one of ``WAYS``.
        :param got: ``[address, bytes]`` of those that gave most.
        :param copied: bytes that the storage node's exporter gave.
        :param gives: whether the host gives it to others.
        """
        self._cast('report_exchange', image_id=image_id, host=host, file=file, way=way, got=got,
                   copied=copied, gives=gives)

    # Of snapshots.

    def begin_snapshot(self, image_id: str, snapshot_id: str, host: str, certificate: str,
                       token: str, virtual_bytes: int) -> dict[str, Any]:
        """Have a snapshot be made that shares with its base, or ask how far that is.

        It is asked again and again, also while the host sends: who is silent is given up.

        :param image_id: of which the server was made.
        :param snapshot_id: the image that the snapshot becomes; it waits for its data.
        :param certificate: as of :meth:`plan_boot`.
        :param token: a secret of the host's own, by which it is known to be the same.
        :param virtual_bytes: size of the server's disk.
        :returns: ``refused`` (why it goes stock Nova's way, in one line); or, once it can be
            written, ``server`` and ``tls`` (as of ``plan_boot``), ``export``, ``disk_format``
            (of the image that it becomes), ``image_hash`` and ``base_export`` (of what content the
            base is, likewise); nothing of these before.
        """
        answer: dict[str, Any] = self._call(
            'begin_snapshot', image_id=image_id, snapshot_id=snapshot_id, host=host,
            certificate=certificate, token=token, virtual_bytes=virtual_bytes)
        return answer

    def finish_snapshot(self, snapshot_id: str, token: str) -> dict[str, Any]:
        """Tell that all of a snapshot was sent, or ask how far it is.

        :param token: as of :meth:`begin_snapshot`.
        :returns: ``refused``, as there; or, once Glance can have it, ``url``, or ``upload`` where
            no store of Glance registers it (see :meth:`upload_snapshot`); nothing before.
        """
        answer: dict[str, Any] = self._call('finish_snapshot', snapshot_id=snapshot_id, token=token)
        return answer

    def upload_snapshot(self, snapshot_id: str, token: str) -> dict[str, Any]:
        """Have a finished snapshot be uploaded, or ask how far that is.

        The image waits for its data, and has its formats: Nova has told Glance of it. It gets no
        location.

        :param token: as of :meth:`begin_snapshot`.
        :returns: ``refused``, as there; or, once Glance has it, ``uploaded``; nothing before.
        """
        answer: dict[str, Any] = self._call('upload_snapshot', snapshot_id=snapshot_id, token=token)
        return answer

    def abandon_snapshot(self, snapshot_id: str, token: str) -> bool:
        """Have a snapshot be removed that Glance is not, or was not, told of.

        :param token: as of :meth:`begin_snapshot`.
        :returns: whether nothing is left of it by now.
        """
        gone: bool = self._call('abandon_snapshot', snapshot_id=snapshot_id, token=token)
        return gone
