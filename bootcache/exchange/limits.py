"""What a process that exchanges files may take and do, as its options and libtorrent have it."""

import dataclasses
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception, tier

# A torrent of a file of 32 GiB has 64 KiB.
MOST_TORRENT_BYTES = 1 << 20
_LEAST_PIECE = 64 << 10
_MOST_PIECE = 16 << 20
# So a torrent has 64 KiB of hashes at most, for files up to 32 GiB.
_PIECES = 2048
_LEAST_RATE = 64 << 10
# Blocks (16 KiB) that a peer may have asked for and not got yet. What bounds the copies that leave
# a source: few, and each piece goes to one peer before the next asks for it as well.
_QUEUE_OF_A_SOURCE = 4
_QUEUE = 8
_WHOLE = (('0.0.0.0', '255.255.255.255'), ('::', 'ffff:' * 7 + 'ffff'))


@dataclasses.dataclass(frozen=True)
class ExchangeLimits:
    """What one host's process may take and do.

    :ivar address: where it listens, and from where it connects.
    :ivar port: TCP.
    :ivar networks: of those who may connect, and be connected to.
    :ivar upload_rate: bytes a second; 0 for no limit.
    :ivar connections: at the same time.
    :ivar files: at the same time.
    """

    address: str
    port: int
    networks: tuple[str, ...]
    upload_rate: int = 0
    connections: int = 50
    files: int = 20


def piece_bytes(size: int) -> int:
    """Return the size of a file's pieces, a power of two. Pure.

    :param size: of the file, in bytes.
    """
    wanted = _LEAST_PIECE
    while wanted < _MOST_PIECE and wanted * _PIECES < size:
        wanted *= 2
    return wanted


def queue(fetches: bool) -> Mapping[str, int]:
    """Return how many blocks a peer may ask for in advance. Pure.

    :param fetches: whether something was fetched, so that this is no source only.
    """
    return {'max_allowed_in_request_queue': _QUEUE if fetches else _QUEUE_OF_A_SOURCE}


def settings(limits: ExchangeLimits) -> dict[str, Any]:
    """Return the settings of libtorrent's session. Pure.

    All that finds strangers is off, as are what speaks with routers and UDP.
    """
    literal = f'[{limits.address}]' if ':' in limits.address else limits.address
    return {
        'enable_dht': False, 'enable_lsd': False, 'enable_upnp': False, 'enable_natpmp': False,
        'enable_incoming_utp': False, 'enable_outgoing_utp': False,
        'announce_to_all_trackers': False, 'announce_to_all_tiers': False,
        'dht_bootstrap_nodes': '', 'user_agent': '', 'handshake_client_version': '',
        # "s": TLS only.
        'listen_interfaces': f'{literal}:{limits.port}s',
        'outgoing_interfaces': limits.address,
        'listen_system_port_fallback': False, 'max_retry_port_bind': 0, 'listen_queue_size': 64,
        'allow_multiple_connections_per_ip': False, 'no_connect_privileged_ports': False,
        'connections_limit': limits.connections, 'unchoke_slots_limit': limits.connections,
        # Nothing comes before the second tick; by default these are half a second apart.
        'connection_speed': 50, 'tick_interval': 100,
        'active_limit': limits.files, 'active_downloads': limits.files,
        'active_seeds': limits.files,
        'max_peerlist_size': 200, 'max_paused_peerlist_size': 200,
        # Seconds: peers are near, and one that hangs is to be left soon.
        'peer_connect_timeout': 3, 'handshake_timeout': 5, 'request_timeout': 4,
        'piece_timeout': 5, 'peer_timeout': 20, 'inactivity_timeout': 60,
        # Who begins at the same time refuses at first: each is tried again when a second is full.
        'min_reconnect_time': 0, 'max_failcount': 100,
        # Who wants what is complete here connects by itself.
        'seeding_outgoing_connections': False,
        'file_pool_size': 16, 'max_queued_disk_bytes': 8 << 20,
        'send_buffer_watermark': 512 << 10, 'max_peer_recv_buffer_size': 1 << 20,
        'aio_threads': 2, 'hashing_threads': 1, 'alert_queue_size': 1000,
        'rate_limit_ip_overhead': False, 'close_redundant_connections': False,
        **queue(False)}


def read(conf: cfg.ConfigOpts) -> ExchangeLimits:
    """Return what this host's exchange may take and do.

    :raises ConfigurationError: naming the option and the cure.
    """
    group = conf[bootcache_conf.GROUP]
    if not group.exchange_address:
        raise exception.ConfigurationError(
            '[bootcache]exchange_address is not set: this host exchanges nothing; give its address'
            ' in the storage network, or do not start bootcache-exchange')
    text = group.exchange_upload_rate.strip()
    rate = 0 if text == '0' else tier.parse_limits('exchange_upload_rate', text, 100, 0,
                                                   _LEAST_RATE).quota
    found = ExchangeLimits(group.exchange_address, group.exchange_port,
                           tuple(group.exchange_networks), rate, group.exchange_connections,
                           group.exchange_files)
    check(found)
    return found


def check(limits: ExchangeLimits) -> None:
    """Check that a process may be started with limits.

    :raises ConfigurationError: naming the option and the cure.
    """
    try:
        address = ipaddress.ip_address(limits.address)
    except ValueError:
        raise exception.ConfigurationError(
            f'[bootcache]exchange_address={limits.address} is no address; give this host\'s in the'
            ' storage network') from None
    if address.is_unspecified:
        raise exception.ConfigurationError(
            f'[bootcache]exchange_address={limits.address} is that of all interfaces; give this'
            ' host\'s in the storage network')
    if not limits.networks:
        raise exception.ConfigurationError(
            '[bootcache]exchange_networks is empty: nobody could be met; name the networks of the'
            ' hosts that take part, as in 10.1.0.0/16')
    if not any(address in _network(text) for text in limits.networks):
        raise exception.ConfigurationError(
            f'[bootcache]exchange_networks has no network with this host\'s exchange_address,'
            f' {limits.address}; name those of all hosts that take part')


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise exception.ConfigurationError(
            f'[bootcache]exchange_networks: {error}; give networks as in 10.1.0.0/16') from None


def rules(networks: Iterable[str]) -> Iterator[tuple[str, str, bool]]:
    """Yield who may be met, as ranges of addresses in which later ones count more. Pure.

    :raises ConfigurationError: if a network is none.
    """
    for first, last in _WHOLE:
        yield first, last, False
    for network in map(_network, networks):
        yield str(network[0]), str(network[-1]), True
