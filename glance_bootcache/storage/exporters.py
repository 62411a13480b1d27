"""The exporters of this storage node: one for all compute hosts, or one for each of them.

With ``[bootcache]export_ports`` a host has an exporter of its own, which lets in nobody but who has
its certificate, and serves what the host has asked for or needs. The one of all hosts then serves
nothing new, whatever is not known of a host: it ends when nobody reads what it served before.
"""

import contextlib
import glob
import heapq
import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, TypeVar

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming
from bootcache.cacheimage import Base
from bootcache.manifest import CacheDifference, Manifest
from bootcache.quoting import quoted
from bootcache.storagedaemon import StorageDaemon, UnixListener
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.ceph.opening import OpenClones
from glance_bootcache.storage import admission, clients, exporter, servedexports, serving
from glance_bootcache.storage.clients import Client, Clients
from glance_bootcache.storage.exporter import Exporter
from glance_bootcache.storage.servedexports import ServedExports, ServedImage

LOG = logging.getLogger(__name__)

T = TypeVar('T')

# Stands for the one of all hosts, in place of the name in a certificate.
COMMON = ''
# Of an exporter's files in run_dir: its log outlives it, until its host has left.
_FILES = 'pid', 'qmp', 'log', 'asked'
# Exporters that are looked at, and if need be started anew, side by side; each takes 5 ms.
_AT_ONCE = 4
# Of a round of upkeep. Those that are left come first in the next.
_ROUND_SECONDS = 10
# So many that were asked for since the last round are looked at in a round, and so many others.
MOST_LOOKS = 200


class Exporters:
    """All exporters, as one: what is said of an image holds wherever it is served.

    :ivar common: the one of all hosts; with ``export_ports`` it only ends.

    :param conf: configuration of the storage service, checked.
    :param path: of the file that tells which host has which port; beside it is the one that tells
        what is served.
    """

    def __init__(self, conf: cfg.ConfigOpts, path: str):
        group = conf[bootcache_conf.GROUP]
        self._conf = conf
        self._path = path
        # Images whose base is served no more, as it cannot be read in a place. Steps are atomic.
        self._suspended: set[str] = set()
        # One daemon has clones open, and all exporters read from it: here alone is known which of
        # them nobody reads any more.
        self._clones = OpenClones(conf)
        self.common = Exporter(conf, self._clones, self._suspended)
        ports = clients.read_ports(group.export_ports)
        self._has_own = bool(ports)
        self._names = tuple(group.tls_client_names)
        self._clients = Clients(path, ports)
        self._served = ServedExports(servedexports.path_beside(path))
        self._throttle = LogThrottle(LOG)
        self._saving = threading.Lock()  # what is served is read and written by one at a time
        self._lock = threading.Lock()  # guards the dictionary
        self._own: dict[Client, Exporter] = {}
        # Certificates whose hosts have asked since their exporter was looked at; steps are atomic.
        self._asked: set[str] = set()
        # Those that are under way; of an exporter that hangs one outlasts its round.
        self._looks: list[futures.Future[None]] = []
        for client in self._clients.all():
            self._exporter_of(client)

    cache_export = staticmethod(exporter.cache_export_name)

    def _exporter_of(self, client: Client) -> Exporter:
        with self._lock:
            if client not in self._own:
                # The port may have been another one's.
                for other in [other for other in self._own if other.port == client.port
                              or other.certificate == client.certificate]:
                    del self._own[other]
                self._own[client] = Exporter(self._conf, self._clones, self._suspended,
                                             client)
            return self._own[client]

    def _runs(self, client: Client) -> bool:
        with self._lock:
            known = self._own.get(client)
        return known is not None and known.runs

    def _of(self, certificate: str) -> Exporter:
        """Return who serves a certificate, as ``know`` and ``of_hosts`` name it.

        :raises StorageDaemonError: if another one has got its port since.
        """
        if not self._has_own:
            return self.common
        client = self._clients.find(certificate)
        if client is None:
            raise exception.StorageDaemonError(
                f'exporter: {certificate or "no certificate"} has no port of'
                ' [bootcache]export_ports; its host gets one when it asks')
        return self._exporter_of(client)

    def _every(self) -> list[Exporter]:
        with self._lock:
            return [*self._own.values(), self.common]

    def _serving(self, image_id: str = '') -> list[Exporter]:
        """Return those that may serve something.

        :param image_id: of that image, or that export; empty for any.
        """
        return [each for each in self._every() if (each is self.common and not self._has_own)
                or ((not image_id or each.may_serve(image_id)) and each.runs)]

    def check(self, each: bool = True) -> None:
        """Check that exporters answer: the one of all hosts, or those of single hosts that run.

        :param each: of these, each has to; else one.
        :raises StorageDaemonError: if it is not so.
        """
        if not self._has_own:
            self.common.check()
        elif (untold := self.untold()) and (each or len(untold) == sum(
                one.runs for one in self._every() if one is not self.common)):
            raise exception.StorageDaemonError(
                f'{len(untold)} exporters of single hosts do not answer: see the log of'
                ' glance-bootcache')

    @staticmethod
    def _all(those: Iterable[T], step: Callable[[T], bool | None]) -> bool:
        """Take a step with each exporter: one that hangs keeps nobody from it but itself.

        :returns: whether all have said so.
        :raises StorageDaemonError: of the last that failed, when all others are done.
        """
        failed, whole = None, True
        for each in those:
            try:
                whole = bool(step(each)) and whole
            except exception.StorageDaemonError as error:
                failed = error
        if failed is not None:
            raise failed
        return whole

    # Who is served.

    def know(self, host: str, certificate: str) -> str:
        """Note that a host asks; return what names its exporter here.

        :param certificate: the distinguished name in the host's; empty if it tells none.
        :raises MessageRefused: if it is none to which an exporter of its own can be given, or came
            in the names of too many hosts.
        :raises StorageDaemonError: if there is no port for it.
        """
        if not self._has_own:
            return COMMON
        if not certificate or not host:
            raise exception.MessageRefused(
                'certificate', 'is not told, and by [bootcache]export_ports each host is served by'
                ' that; the log of its nova-compute, at debug level, says why it does not tell it')
        if not admission.is_named(certificate, self._names):
            raise exception.MessageRefused(
                'certificate', f'{quoted(certificate)} is none of [bootcache]tls_client_names')
        self._clients.note(host, certificate)
        self._asked.add(certificate)
        self._save()
        return certificate

    def of_hosts(self, hosts: Collection[str]) -> set[str]:
        """Return what names the exporters of hosts; where hosts share one, that one."""
        return self._clients.of(hosts) if self._has_own else {COMMON}

    def _save(self) -> None:
        try:
            self._clients.save()
        except OSError as error:
            LOG.warning('which host has which port cannot be written: %s', error)

    # The daemons.

    def start(self, serve: Callable[[Collection[str], str], None] | None = None) -> bool:
        """Adopt or start the daemons, and look what they serve.

        Of those of single hosts some are looked at: all that have not told, MOST_LOOKS of those
        whose hosts have asked, and as many others, the one first that was not looked at for
        longest. So each is within N / MOST_LOOKS calls of N; where some hang, as many a call as
        the others leave time for.
        Of those that have to be started anew, as with renewed certificates, few are away at a time.

        :param serve: serves a certificate those exports again that a daemon served which was
            ended here; what StorageDaemonError it raises is not raised.
        :returns: True if the one of all hosts was started, and so serves nothing yet; those of
            single hosts are started when something is to be served.
        :raises StorageDaemonError: if that one does not come up.
        """
        self._clones.start()

        end = time.monotonic() + _ROUND_SECONDS

        def adopt(each: Exporter) -> None:
            if time.monotonic() >= end:
                return
            self._asked.discard(each.certificate)
            try:
                served = each.adopt()
                if served and serve is not None and each.certificate:
                    serve(served, each.certificate)
                self._throttle.recovered(each.log_path, '%s: the exporter answers again',
                                         each.log_path)
            except exception.StorageDaemonError as error:
                # It is looked at again before something else is served by it; others go on.
                self._throttle.warning(
                    each.log_path, 'an exporter does not answer, and of what it serves nothing'
                    ' changes until it does: %s', error)

        workers = futures.ThreadPoolExecutor(_AT_ONCE, 'bootcache-exporters')
        looks = [workers.submit(adopt, each) for each in self._due()]
        self._looks = [look for look in (*self._looks, *looks) if not look.done()]
        # Nobody waits for one that hangs: it has its thread for up to a minute.
        workers.shutdown(wait=False)
        for look in futures.wait(looks, _ROUND_SECONDS).done:
            look.result()
        self._end_unknown()
        return not self._has_own and self.common.start()

    def save_served(self) -> None:
        """Write ``exports.json``, if what is served has changed."""
        # One that has just ended serves again what it served.
        if self._has_own or self.common.runs:
            with self._saving:
                self._served.write({each.certificate: set(each.served) if each.has_told else None
                                    for each in self._every()})

    def start_as_before(self) -> None:
        """Have the daemons run, and serve what ``exports.json`` says; called again and again, as
        one may end, and what could not be served may be there by then.

        :raises StorageDaemonError: as of ``start``.
        """
        self.start(self.serve_as_before)
        self.serve_as_before()

    def serve_as_before(self, exports: Collection[str] | None = None,
                        certificate: str = COMMON) -> None:
        """Serve what ``exports.json`` says was served; what fails is logged.

        :param exports: of images of which one of these was served; None for all images.
        :param certificate: to whom, where there are such exports.
        """
        for image in self._served.images():
            whose = [client for client in image.clients
                     if not self._has_own or self._clients.find(client) is not None] \
                if exports is None else [certificate] * (image.base_export in exports)
            if whose:
                self._serve_as_before(image, whose)

    def _serve_as_before(self, image: ServedImage, whose: Collection[str]) -> None:
        serving.serve(image.manifest(), lambda manifest: self.ensure(
            manifest, image.cache_path, whose))

    def _due(self) -> list[Exporter]:
        """Return the exporters that are to be looked at in a round, in this order."""
        unknown: list[Exporter] = []
        asked: list[Exporter] = []
        others: list[Exporter] = []
        for each in self._every():
            if each is self.common and not self._has_own:
                continue
            (unknown if not each.is_known or each is self.common
             else asked if each.certificate in self._asked else others).append(each)
        adopted_at = operator.attrgetter('adopted_at')
        return sorted((*unknown, *heapq.nsmallest(MOST_LOOKS, asked, adopted_at),
                       *heapq.nsmallest(MOST_LOOKS, others, adopted_at)), key=adopted_at)

    def _end_unknown(self) -> None:
        """End exporters of hosts that are not known, and remove their files.

        The file that tells of a host was lost: nobody else would end its exporter, or stop it
        serving what is withdrawn, and it has the port of another host. What its servers read waits
        until they are told of another port. Or the host has left, and its log is of no more use.
        """
        with self._lock:
            for client in set(self._own) - set(self._clients.all()):
                if not self._own[client].runs:
                    del self._own[client]
                    self._asked.discard(client.certificate)
        known = {client.daemon for client in self._clients.all()}
        directory = self._conf[bootcache_conf.GROUP].run_dir
        pattern = os.path.join(glob.escape(directory), 'exporter-*.*')
        for name in sorted({os.path.basename(path).partition('.')[0] for path in
                            glob.glob(pattern)}):
            if name in known:
                continue
            daemon = StorageDaemon(name, directory, UnixListener(''))
            if daemon.pid() is not None:
                LOG.warning('%s is of no compute host that is known, and is ended: %s was lost;'
                            ' what servers read from it waits until their host asks again', name,
                            self._path)
                daemon.stop()
            for kind in _FILES:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, f'{name}.{kind}'))

    def stop(self) -> None:
        """End the daemons: whoever reads from them waits and then fails."""
        for each in self._serving():
            each.stop()
        self._clones.stop()

    def end_unused(self, idle: float) -> None:
        """End daemons of which nobody needs anything.

        :param idle: seconds for which nobody has asked.
        :raises StorageDaemonError: if one does not answer.
        """
        try:
            self._all((each for each in self._every() if self._has_own or each is not self.common),
                      lambda each: each.end_unused(idle))
        finally:
            self._clients.drop(self._runs)
            self._save()

    @property
    def runs(self) -> bool:
        """Whether any of them does."""
        return any(each.runs for each in self._every())

    @property
    def log_paths(self) -> list[str]:
        """The paths of their logs; there need not be any."""
        return [each.log_path for each in self._every()]

    def may_serve(self, log_path: str, export: str) -> bool:
        """Tell whether the exporter of a log may serve an export, without asking it."""
        return any(each.log_path == log_path and each.may_serve(export)
                   for each in self._every())

    # Images.

    def describe(self, manifest: Manifest, certificate: str = COMMON) -> dict[str, Any]:
        """Return what a compute host needs to reach an image: see PlanBoot."""
        return {**self._of(certificate).describe(manifest), **self._clones.told(manifest)}

    def ensure(self, manifest: Manifest, cache_path: str | None,
               certificates: Iterable[str] | None = None) -> None:
        """Serve an image's base, and its cache image if there is one: see ``Exporter.ensure``.

        :param certificates: to whom, as ``know`` and ``of_hosts`` name them; None for all, or where
            hosts have exporters of their own for none before it asks.
        :raises StorageDaemonError: if a daemon refuses.
        """
        is_read = self._all(self.of_hosts(()) if certificates is None else certificates,
                            lambda certificate: self._of(certificate).ensure(manifest, cache_path))
        # The row of an older state of the database may have what is not there any more.
        if is_read or os.path.exists(manifest.made.base_path):
            self._served.record(manifest, cache_path)

    def ensure_stored(self, manifest: Manifest, certificate: str = COMMON) -> str:
        """Serve the bytes of an image's stored file, whatever its format.

        An NBD export ends with a whole sector of 512 bytes: zeros follow ``stored_bytes``.

        :returns: the export's name.
        :raises StorageDaemonError: if the daemon refuses, or the file is gone.
        """
        export = naming.export_name(naming.EXPORT_STORED, manifest.image_id)
        if not manifest.made.base_path:
            raise exception.StorageDaemonError(
                f'exporter: image {manifest.image_id} has no stored file here; build it again')
        self._of(certificate).ensure_file(export, lambda: self._clones.base(manifest, 'raw'),
                                          exporter.of_base(manifest)[export])
        return export

    def ensure_difference(self, manifest: Manifest, difference: CacheDifference, path: str,
                          certificate: str = COMMON) -> str:
        """Serve the difference of an image's cache image to one host.

        :param path: of its file.
        :returns: the export's name.
        :raises StorageDaemonError: if the daemon refuses, for instance as the file is gone.
        """
        export = exporter.difference_export(manifest, difference)
        self._of(certificate).ensure_file(export, lambda: Base(path, 'raw', 0),
                                          naming.node_name('d', export))
        return export

    def lend(self, export: str, node: dict[str, object], certificate: str) -> dict[str, Any]:
        """Serve a node to be written by one host, until ``cut_off``: see ``Exporter.lend``."""
        return self._of(certificate).lend(export, node)

    def switch_cache(self, manifest: Manifest, path: str) -> None:
        """Serve a cache image from another file of the same bytes: ``Exporter.switch_cache``."""
        self._all(self._serving(manifest.image_id),
                  lambda each: each.switch_cache(manifest, path))

    def cache_places(self) -> dict[str, set[str]]:
        """Return the files from which cache images are served now, by their exports.

        :raises StorageDaemonError: if a daemon does not answer.
        """
        found: dict[str, set[str]] = {}
        for each in self._serving():
            try:
                places = each.cache_places()
            except exception.StorageDaemonError:
                if each.runs:
                    raise
                continue  # It has ended meanwhile, as nobody used it, and serves nothing.
            for export, place in places.items():
                found.setdefault(export, set()).add(place)
        return found

    @contextlib.contextmanager
    def withdrawn(self, manifest: Manifest) -> Iterator[bool]:
        """Stop serving a cache image to anybody within the block: see ``Exporter.withdrawn``."""
        with contextlib.ExitStack() as stack:
            yield all(stack.enter_context(each.withdrawn(manifest))
                      for each in self._every())

    def withdraw_idle(self, needed_by: Mapping[str, Collection[str]], idle: float) -> None:
        """Serve images no more to those who have not asked for them in a while, nor need them.

        Those of single hosts give up the cache image as well: see ``Exporter.withdraw_idle``.

        :param needed_by: by the id of each image that may go, who needs it, as ``of_hosts`` names
            them.
        :param idle: seconds.
        :raises StorageDaemonError: if a daemon does not answer.
        """
        self._all(self._serving(), lambda each: each.withdraw_idle(
            lambda image_id: image_id in needed_by
            and each.certificate not in needed_by[image_id], idle, with_cache=self._has_own))

    def retire(self, image_id: str, with_base: bool) -> bool:
        """Stop serving an image: see ``Exporter.retire``."""
        return self._all(self._serving(image_id),
                         lambda each: each.retire(image_id, with_base)) and with_base

    def cut_off(self, export: str) -> None:
        """Stop serving an export that cannot be read: see ``Exporter.cut_off``."""
        self._all(self._serving(export), lambda each: each.cut_off(export))

    def keep_open(self, manifests: Iterable[Manifest]) -> None:
        """Have those bases in Ceph open that any exporter serves, and no others.

        See ``OpenClones.keep``, also for the errors.

        :param manifests: all that there are.
        """
        readers = self._every()
        # What one serves that has not answered yet since this process runs is not known, nor what
        # one is to serve again that was just ended.
        may_end = all(each.has_told for each in readers) and all(
            look.done() for look in self._looks)
        served = {served for each in readers for served in each.served.items()}
        known = {served: manifest for manifest in manifests
                 for served in exporter.of_base(manifest).items()}
        # What nothing here knows is of a row that the database does not have any more, or of before
        # the base was got again.
        may_end = may_end and all(each in known for each in served if exporter.is_base(each[0]))
        self._clones.keep([known[each] for each in served & known.keys()], may_end)

    def untold(self) -> set[str]:
        """Return what names the exporters of hosts that run and have not told what they serve.

        One that hangs is among them: ``start`` looks at them, and nobody waits for that.
        """
        return {each.certificate for each in self._every()
                if each is not self.common and not each.is_known}

    def served_images(self) -> set[str]:
        """Return the images of which something is served, as far as exporters have told."""
        return {naming.image_of(export) for each in self._every() for export in each.served
                if export.partition('-')[0] in naming.OF_IMAGES}

    def suspend(self, image_id: str) -> bool:
        """Have ``ensure`` refuse an image until ``resume``; False if it does already."""
        if image_id in self._suspended:
            return False
        self._suspended.add(image_id)
        return True

    def resume(self, image_id: str) -> None:
        """Let an image be served again."""
        self._suspended.discard(image_id)
