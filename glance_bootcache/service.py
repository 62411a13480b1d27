"""``glance-bootcache``: the storage service's process."""

import os
import socket
import sys

import fasteners
import oslo_messaging as messaging
from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import backend as service_backend

from bootcache import conf as bootcache_conf
from bootcache import exception, rpcapi
from glance_bootcache import conf as glance_conf

LOG = logging.getLogger(__name__)


def build_service() -> type:
    """Return the service class; oslo.service's back end must have been chosen before."""
    from oslo_service import service

    class StorageService(service.Service):  # type: ignore[misc]
        """Manager, RPC server and notification listener in one process."""

        def __init__(self, conf: cfg.ConfigOpts):
            super().__init__()
            self._conf = conf

        def start(self) -> None:
            """Start all of it, in the process that serves."""
            from glance_bootcache.endpoints import Endpoints
            from glance_bootcache.exporter import Exporter
            from glance_bootcache.images import Images
            from glance_bootcache.listener import ImageEvents, get_listener
            from glance_bootcache.manager import Manager
            from glance_bootcache.profileboot.throughnova import NovaProfileBoots
            from glance_bootcache.store import ImageStore
            super().start()
            conf = self._conf
            store = ImageStore(conf[bootcache_conf.GROUP].state_dir)
            self._manager = Manager(conf, store, Images(conf), Exporter(conf),
                                    NovaProfileBoots(conf))
            self._manager.start()
            self._listener = get_listener(
                conf, ImageEvents(self._manager.consider, self._manager.forget))
            self._listener.start()
            self._server = messaging.get_rpc_server(
                rpcapi.get_transport(conf), rpcapi.target(server=conf.host),
                [Endpoints(self._manager)], executor='threading')
            self._server.start()
            LOG.info('glance-bootcache serves')

        def stop(self, graceful: bool = True) -> None:
            """Stop taking work, give up what is in hand. The exporter goes on serving."""
            self._listener.stop()
            self._server.stop()
            self._manager.stop()
            super().stop(graceful)

    return StorageService


def main(argv: list[str] | None = None) -> int:
    """Run the storage service until it is told to stop.

    :returns: the process's exit code.
    """
    conf = cfg.CONF
    logging.register_options(conf)
    glance_conf.register_opts(conf)
    conf.register_opt(cfg.HostAddressOpt('host', default=socket.gethostname(), help="""
Name of this storage service on the message bus.
"""))
    messaging.set_transport_defaults(control_exchange=rpcapi.EXCHANGE)
    conf(sys.argv[1:] if argv is None else argv, project='bootcache', prog='glance-bootcache')
    logging.setup(conf, 'glance-bootcache')
    try:
        glance_conf.check(conf)
        lock = _only_one(conf[bootcache_conf.GROUP].state_dir)
    except (ValueError, OSError, exception.BootcacheError) as error:
        print(f'glance-bootcache: {error}', file=sys.stderr)
        return 1
    service_backend.init_backend(service_backend.BackendType.THREADING)
    from oslo_service import service
    try:
        service.launch(conf, build_service()(conf), workers=1).wait()
    finally:
        lock.release()
    return 0


def _only_one(state_dir: str) -> fasteners.InterProcessLock:
    os.makedirs(state_dir, mode=0o750, exist_ok=True)
    lock = fasteners.InterProcessLock(os.path.join(state_dir, 'lock'))
    if not lock.acquire(blocking=False):
        raise exception.BootcacheError(
            f'another glance-bootcache works on [bootcache]state_dir {state_dir}')
    return lock


if __name__ == '__main__':
    sys.exit(main())
