"""The configuration file of a small Ceph: plain files, loopback, little memory. Pure."""

from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
LOOPBACK = '127.0.0.1'
# Each of its size or age where the default is for a machine of its own.
_GLOBAL = {
    'mon_initial_members': 'a',
    'public_addr': LOOPBACK,
    'cluster_addr': LOOPBACK,
    'ms_bind_ipv6': 'false',
    'auth_cluster_required': 'cephx',
    'auth_service_required': 'cephx',
    'auth_client_required': 'cephx',
    'auth_allow_insecure_global_id_reclaim': 'false',
    'osd_pool_default_min_size': '1',
    'mon_allow_pool_size_one': 'true',
    'mon_warn_on_pool_no_redundancy': 'false',
    'osd_pool_default_pg_num': '8',
    'osd_pool_default_pg_autoscale_mode': 'off',
    # An OSD that got no CPU for longer than this lease, 16 s by default, may not answer any more:
    # where it is the only one, nothing renews the lease then.
    'osd_pool_default_read_lease_ratio': '100',
    # Copies may be on one machine.
    'osd_crush_chooseleaf_type': '0',
    'mon_allow_pool_delete': 'true',
    'mon_data_avail_warn': '1',
    'mon_data_avail_crit': '1',
}
_MON = {
    'mon_memory_target': str(256 << 20),
    'rocksdb_cache_size': str(16 << 20),
    # A test makes pools and keys one by one.
    'paxos_propose_interval': '0.05',
    'paxos_min_wait': '0.01',
    'mon_tick_interval': '1',
}
_OSD = {
    'osd_objectstore': 'bluestore',
    'bluestore_block_create': 'true',
    'bluestore_block_path': '',
    'bluestore_block_wal_create': 'false',
    'bluestore_block_db_create': 'false',
    # So that what is deleted gives its space back.
    'bdev_enable_discard': 'true',
    'osd_memory_target': str(896 << 20),
    'osd_memory_target_autotune': 'false',
    'osd_op_num_shards': '2',
    'osd_op_num_threads_per_shard': '1',
    # Else each start measures the disk.
    'osd_op_queue': 'wpq',
}


def _section(name: str, options: dict[str, str]) -> str:
    return f'[{name}]\n' + ''.join(f'{key} = {value}\n' for key, value in options.items())


def render(directory: Path, fsid: str, port: int, osd_bytes: int, copies: int,
           addresses: Mapping[str, str], classes: Path | None) -> str:
    """Return the text of ceph.conf, for daemons and clients.

    :param directory: where all of it lies.
    :param fsid: the cluster's id.
    :param port: TCP port of the monitor; the next one is its too.
    :param osd_bytes: size of each (sparse) block file.
    :param copies: of each object.
    :param addresses: of daemons, by name (``mon.a``, ``osd.0``), that are elsewhere than on the
        loopback interface.
    :param classes: where the OSDs' object classes are, absolute: Debian 13's Ceph 18 has a relative
        default, which an OSD does not find. None for the default.
    """
    monitor = addresses.get('mon.a', LOOPBACK)
    places = {
        'fsid': fsid,
        'mon_host': f'[v2:{monitor}:{port + 1},v1:{monitor}:{port}]',
        'osd_pool_default_size': str(copies),
        'run_dir': f'{directory}/run',
        # Clients of one name do not share a socket.
        'admin_socket': f'{directory}/run/$cluster-$name.$pid.asok',
        'pid_file': f'{directory}/run/$name.pid',
        'log_file': f'{directory}/log/$name.log',
        'crash_dir': f'{directory}/crash',
        'keyring': f'{directory}/$cluster.$name.keyring',
    }
    mon = {'mon_data': f'{directory}/mon/$id', 'keyring': f'{directory}/mon/$id/keyring'}
    osd = {'osd_data': f'{directory}/osd$id', 'keyring': f'{directory}/osd$id/keyring',
           'bluestore_block_size': str(osd_bytes),
           **({'osd_class_dir': str(classes)} if classes else {})}
    return '\n'.join((_section('global', {**places, **_GLOBAL}), _section('mon', {**mon, **_MON}),
                      _section('osd', {**osd, **_OSD}),
                      *(_section(name, {'public_addr': address, 'cluster_addr': address})
                        for name, address in addresses.items())))
