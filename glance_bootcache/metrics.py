"""Figures of the storage service for Prometheus, if it gives a port: few, and none by host."""

import importlib
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.rpc.messages import ExchangeWay
from glance_bootcache.exchange.offers import Given

LOG = logging.getLogger(__name__)

_FILES = 'Files that came to hosts that asked for them by exchange, by how they came'
_BYTES = 'Bytes that hosts got of files that they asked for by exchange, by who gave them'
# By the names that Given has for them.
_GIVERS = {'hosts': 'exchanged_bytes', 'storage': 'storage_bytes', 'exporter': 'copied_bytes'}


class Metrics:
    """Listens for Prometheus.

    :param conf: configuration of the storage service.
    :param given: what hosts told of files that they got.
    :raises ConfigurationError: if it cannot listen, or ``prometheus_client`` is not there.
    """

    def __init__(self, conf: cfg.ConfigOpts, given: Given):
        self._given = given
        self._server: Any = None
        group = conf[bootcache_conf.GROUP]
        if not group.metrics_port:
            return
        try:
            # The rest of bootcache does without.
            self._prometheus = importlib.import_module('prometheus_client')
        except ImportError as error:
            raise exception.ConfigurationError(
                f'[bootcache]metrics_port={group.metrics_port}: prometheus_client cannot be loaded'
                f' ({error}); install it by "pip install bootcache[metrics]", or leave the option'
                ' out') from error
        registry = self._prometheus.CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, _thread = self._prometheus.start_http_server(
                group.metrics_port, group.metrics_address, registry)
        except OSError as error:
            raise exception.ConfigurationError(
                f'[bootcache]metrics_address={group.metrics_address},'
                f' metrics_port={group.metrics_port}: nothing can listen there'
                f' ({error.strerror}); give an address of this host, and a port that nobody has'
                ) from error
        LOG.info('metrics are told at %s, port %d', group.metrics_address, group.metrics_port)

    def collect(self) -> Iterator[Any]:
        """Give the figures as they are: Prometheus asks."""
        totals = self._given.totals()
        core = importlib.import_module('prometheus_client.core')
        files = core.CounterMetricFamily('bootcache_exchange_files', _FILES, labels=['way'])
        for way in ExchangeWay:
            files.add_metric([way], totals[f'{way}_files'])
        sent = core.CounterMetricFamily('bootcache_exchange_bytes', _BYTES, labels=['giver'])
        for giver, name in _GIVERS.items():
            sent.add_metric([giver], totals[name])
        yield from (files, sent)

    def stop(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
