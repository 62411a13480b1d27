"""The tables of the storage service's database: doc/source/formats.rst has them column by column.

Types hold for InnoDB with utf8mb4, PostgreSQL and SQLite. Names compare byte by byte: MariaDB's
usual collation takes ``Host-1`` and ``host-1`` for the same.
"""

import enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import mysql

_TABLE = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}
_UUID = sa.String(36)
_NAME = sa.String(255)
# A statement that may insert a row takes a number also where the row is there. SQLite's own have 64
# bits.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


class Model(orm.DeclarativeBase):
    """All tables; ``Model.metadata`` is what the migrations have to end in."""

    __table_args__: object = _TABLE


def _flag(doc: str) -> orm.MappedColumn[bool]:
    return orm.mapped_column(sa.Boolean, nullable=False, doc=doc)


def _text(most: int, doc: str) -> orm.MappedColumn[str]:
    return orm.mapped_column(sa.String(most), nullable=False, doc=doc)


def _bytes(doc: str) -> orm.MappedColumn[int]:
    return orm.mapped_column(sa.BigInteger, nullable=False, doc=doc)


def _part(kind: Any, doc: str) -> orm.MappedColumn[Any]:
    """Return a column of what an image need not have: it is NULL then, with the others of it."""
    return orm.mapped_column(kind, nullable=True, doc=doc)


class IdentityRow(Model):
    """By which this database is told from another one; there is one row."""

    __tablename__ = 'identity'

    id = orm.mapped_column(sa.Integer, primary_key=True, autoincrement=False, doc='1')
    uuid = orm.mapped_column(_UUID, nullable=False,
                             doc='of the database, drawn when it was first used')


class StorageNodeRow(Model):
    """A storage node: what runs ``glance-bootcache``."""

    __tablename__ = 'storage_nodes'

    id = orm.mapped_column(_NUMBER, primary_key=True, doc='number of the row')
    uuid = orm.mapped_column(_UUID, nullable=False, unique=True,
                             doc='of the node\'s state directory, drawn when that was first used')
    name = orm.mapped_column(_NAME, nullable=False, unique=True, doc='``[DEFAULT]host``')
    beat = _bytes('counts up while its service runs')
    state = _text(16, '``up``; ``restored``: the database is another one than the node knew, or an'
                      ' older state of it, and no file is removed there')
    wish = orm.mapped_column(
        sa.String(16), nullable=True,
        doc='what an operator wants of it: ``drained`` (its images go to other nodes, and it gets'
            ' no new ones) or ``forgotten`` (it is gone for good); NULL: nothing')
    rpc = orm.mapped_column(sa.String(16), nullable=True,
                            doc='version of the RPC messages that it speaks')
    look_rules = orm.mapped_column(
        sa.Integer, nullable=True,
        doc='version of the rules by which it looks at bases; it takes over no image whose base'
            ' later ones accepted')
    free_bytes = orm.mapped_column(sa.BigInteger, nullable=True,
                                   doc='room in its state directory, beyond a quarter of the'
                                   ' disk, when it beat last')


class ImageRow(Model):
    """What is known of an image: what people wish, and what was made of it."""

    __tablename__ = 'images'

    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image in Glance')
    node_id = orm.mapped_column(
        _NUMBER, sa.ForeignKey('storage_nodes.id', name='fk_images_node_id'), nullable=False,
        doc='row of the node that works on it in storage_nodes')
    term = _bytes('counts up when another node works on it')
    version = _bytes('counts up with each change but of ``last_used``, so that nobody overwrites'
                     ' what he has not read')
    last_used = orm.mapped_column(
        sa.Double, nullable=True,
        doc='when a server last booted from its cache image, in seconds since the epoch; NULL:'
            ' none did')
    standing = _text(16, 'how far it is: ``wanted`` (something is to be done, and begins again'
                         ' after a restart), ``done``, ``failed`` or ``skipped``')
    goal = _text(16, 'what is to be made of it: ``serve`` (the base), ``record`` (a profile boot,'
                     ' and a cache image of what it reads) or ``build`` (a cache image of the'
                     ' working set that there is); empty if nothing is')
    reason = _text(32, 'why it is skipped, has failed or waits, or why an older cache image'
                       ' serves: one of those of bootcache/reasons.py, empty if there is none')
    detail = orm.mapped_column(sa.Text, nullable=False, doc='what the reason is about')
    image_hash = _text(255, '``algorithm:hexadecimal`` of the content in Glance that was taken up'
                            ' last, which ``standing`` is about; it is not taken up again by'
                            ' itself. Empty if none was, and while the image is skipped for what'
                            ' it is')
    updated_at = _text(32, 'time of the last change, ISO 8601, UTC')
    taken_up_at = orm.mapped_column(
        sa.Double, nullable=False,
        doc='when the content of ``image_hash`` was taken up, in seconds since the epoch; 0 while'
            ' not known. While the base is of an older content, servers that Nova created later'
            ' do not keep it')
    # What people wish: Glance's notifications and operators' commands.
    held = _flag('whether an operator deleted the cache image; only an operator makes a new one')
    requested = _flag('whether an operator wants a new recording, and there was none since')
    pinned = _flag('whether an operator wants the cache image to stay in every tier')
    quota = _bytes('bytes that its cache image may have; 0 while not known')
    boot_marker = _text(512, 'the marker in force, for boots to come; empty while not known')
    settle = _flag('whether its servers are to be settled')
    generation = _bytes(
        '0, and more each time that all hosts are to let go of the cache image that they hold:'
        ' after an operator\'s eviction, or when fewer people may see the image, see'
        ' :doc:`warming`. At least that time, in seconds since the epoch, so that it does not'
        ' begin anew after the loss of the row')
    visibility = _text(16, 'Glance\'s, as last seen: ``public``, ``community``, ``shared`` or'
                           ' ``private``; empty while not known')
    warm_due = _flag('whether the hosts that ``[bootcache]warm_on_register`` asks for are still to'
                     ' be warmed; true from when the image\'s content is new until they are')
    name = _text(255, 'the Glance image\'s name when it was looked at last')
    owner = _text(255, 'id of the project that the image belongs to, as last seen, whose images'
                       ' take turns with those of others; empty while not known')
    availability = _text(32, 'whether Glance gives the image out, as last heard: ``active``,'
                             ' ``hidden``, ``deactivated``, ``off`` (``bootcache_mode``),'
                             ' ``missing`` (Glance answers that it does not have it),'
                             ' ``deletion-notified`` or ``deleted`` (that is believed): see'
                             ' :doc:`operations`')
    # What was made.
    base_path = orm.mapped_column(
        sa.Text, nullable=False,
        doc='absolute path of the image file that is served as the base: in the image\'s'
            ' directory, or in Glance\'s store where it could not be linked; empty if none. Of a'
            ' base in Ceph ``rbd:POOL/NAMESPACE/NAME``, its clone (:doc:`ceph`)')
    base_hash = _text(255, '``algorithm:hexadecimal`` of that file; it stays when the base is given'
                           ' up. The working set and the cache image are of this content. Where it'
                           ' is not ``image_hash``, servers still need the older base')
    base_export = _text(255, 'the exporter\'s name for the base, which is of this content alone')
    base_file = orm.mapped_column(
        sa.String(80), nullable=True,
        doc='inode, time of the last change in nanoseconds, and size of the file that has'
            ' ``base_hash``, with colons; NULL of one in Ceph. A file of that path of which one'
            ' differs is hashed again before it is served. The size is negative where the file was'
            ' not there when its node\'s service started: other nodes keep what they have of it')
    image_format = _text(16, 'of that file: ``qcow2`` or ``raw``; empty while not known')
    stored_bytes = _bytes('its size')
    virtual_bytes = _bytes('size of the base')
    built_from = _text(64, 'sha256 of the working set that the cache image was built from: where'
                           ' that is another one than there is, as after a restart, it is built'
                           ' again')
    look_rules = orm.mapped_column(
        sa.Integer, nullable=False,
        doc='version of the rules by which the base was looked at and accepted. Where it is not'
            ' that of the service that starts, the working set and the cache image are dropped,'
            ' hosts let go of theirs, servers go the stock way, and the base is looked at again,'
            ' in its place')
    signed_as = _text(64, 'sha256 of Glance\'s four properties of a signature, where'
                          ' ``[bootcache]verify_signatures`` is on; empty of an image without.'
                          ' Where Glance has others, the working set and the cache image are'
                          ' dropped, hosts let go of theirs, and the base is verified again')
    signature = _text(64, 'fingerprint of what the base was verified by: sha256 of the kind of'
                           ' key, the hash, the signature and the public key'
                           ' (``bootcache/signatures.py``); empty where it was not. With'
                           ' ``signed_as`` and without it, servers go the stock way')
    working_set_sha256 = _part(sa.String(64), 'sha256 of its working set\'s text in working_sets')
    working_set_bytes = _part(sa.BigInteger, 'sum of its extents\' lengths')
    working_set_extents = _part(sa.BigInteger, 'how many extents')
    working_set_granularity = _part(sa.BigInteger, 'bytes to which the recorder rounded')
    working_set_recorded_by = _part(
        sa.String(16), '``nova`` or ``direct``, of profile boots, ``server``, or ``parent``: it is'
                       ' that of the image that a snapshot\'s server was made of')
    working_set_ended_by = _part(
        sa.String(16), 'what ended the boot: ``marker``, ``silence``, ``quota``, ``timeout`` or'
                       ' ``shutdown``')
    working_set_boot_seconds = _part(
        sa.Double, 'from the making of its overlay to the boot\'s end; where silence ended it, to'
                   ' when that began')
    working_set_boot_marker = _part(sa.String(512), 'the marker in force')
    working_set_version = _part(sa.Integer, '1, and one more with each refinement by a later boot')
    cache_file = _part(
        sa.String(64), 'the cache image\'s name in the image\'s directory; with ``.zstd.qcow2`` at'
                       ' its end the clusters are compressed. It is the name that says so')
    cache_bytes = _part(sa.BigInteger, 'the file\'s size')
    cache_data_bytes = _part(sa.BigInteger, 'bytes of the base that it holds, at its cluster size')
    cache_extents = _part(sa.BigInteger, 'how many extents that is')
    cache_sha256 = _part(sa.String(64), 'of the file')
    cache_virtual_bytes = _part(sa.BigInteger, 'size of the base')
    cache_cluster_bytes = _part(sa.BigInteger, 'cluster size')
    cache_quota = _part(sa.BigInteger, 'bytes that it was allowed')
    cache_backing_uri = _part(sa.Text, 'the base\'s place in its header')
    cache_build_seconds = _part(sa.Double, 'how long the building took, verification included')
    cache_verify_rules = _part(sa.Integer,
                               'version of the rules under which it was verified')
    difference_parent = _part(
        _UUID, 'id of the image whose cache image the difference is to be put together with')
    difference_parent_hash = _part(sa.String(255), 'of that image\'s content,'
                                                   ' ``algorithm:hexadecimal``')
    difference_bytes = _part(sa.BigInteger, 'the difference\'s size')
    difference_sha256 = _part(sa.String(64), 'of the file')
    difference_layout_at = _part(sa.BigInteger, 'where in it the layout begins')
    difference_data_bytes = _part(sa.BigInteger, 'of the blocks that differ')
    difference_content = _part(
        sa.String(64), 'sha256 of the cache image\'s layout and data, by which a host that has put'
                       ' it together knows that it is right')


class WorkingSetRow(Model):
    """A working set; it counts if its image\'s row names it."""

    __tablename__ = 'working_sets'

    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image')
    sha256 = orm.mapped_column(sa.String(64), primary_key=True, doc='of the text')
    body = orm.mapped_column(
        sa.LargeBinary().with_variant(mysql.MEDIUMBLOB, 'mysql', 'mariadb'), nullable=False,
        doc='the text, JSON as `Working set`_ has it, compressed by zlib')


class FileState(enum.StrEnum):
    """How far what was made on a storage node is: see ``FileRow``."""

    MAKING = 'making'
    READY = 'ready'
    RETIRING = 'retiring'


class FileRow(Model):
    """A thing that a storage node has made: its row is written before it is made.

    What no row names is left where it is.
    """

    __tablename__ = 'files'

    node_id = orm.mapped_column(
        _NUMBER, sa.ForeignKey('storage_nodes.id', name='fk_files_node_id'),
        primary_key=True, doc='row of the node in storage_nodes')
    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image that it is of')
    name = orm.mapped_column(
        _NAME, primary_key=True,
        doc='name of the file in the image\'s directory; of a clone or copy in Ceph'
            ' ``rbd:POOL/NAMESPACE/NAME``; of a server its name, of an image in Glance its id. It'
            ' is used once')
    kind = _text(16, 'of files ``base``, ``cache_image`` or ``difference``; ``clone``: a base in'
                     ' Ceph; ``copy``: in Ceph, of a snapshot that too many others are below;'
                     ' ``server``: of a profile boot, in Nova; ``trial``: an image in Glance by'
                     ' which a store is tried (:doc:`filestore`); ``standby``: a file, a copy of'
                     ' another node\'s base (:doc:`nodes`)')
    state = _text(16, '``making``: nothing names it yet; ``ready``: the image\'s row does, or it'
                      ' is a copy that is whole; ``retiring``: it is removed. What an earlier'
                      ' process was making is retiring as the next one starts')
    made_at = orm.mapped_column(
        sa.Double, nullable=False,
        doc='when the row was written, in seconds since the epoch. What Ceph, Glance or Nova do not'
            ' have may come yet, if its making was not answered: its row stays ten minutes')


class HostRow(Model):
    """A compute host that has reported which images' bases its servers need."""

    __tablename__ = 'hosts'

    id = orm.mapped_column(_NUMBER, primary_key=True, doc='number of the row')
    name = orm.mapped_column(_NAME, nullable=False, unique=True,
                             doc='name of the host, as it reports')
    needs = orm.mapped_column(
        sa.String(16), nullable=False,
        doc='``named``: it needs the images of host_images; ``unreadable``: its report could not be'
            ' read; ``too_many``: it named more than are remembered')


class HostImageRow(Model):
    """An image whose base a host needs."""

    __tablename__ = 'host_images'
    __table_args__ = (sa.Index('ix_host_images_image_id', 'image_id'), _TABLE)

    host_id = orm.mapped_column(
        _NUMBER, sa.ForeignKey('hosts.id', name='fk_host_images_host_id', ondelete='CASCADE'),
        primary_key=True, doc='row of the host in hosts')
    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image')


class OrderRow(Model):
    """A cache image that is to go from a host, until the host reports that it is gone."""

    __tablename__ = 'orders'

    host = orm.mapped_column(_NAME, primary_key=True,
                             doc='name of the host; empty: all hosts, of an image that was deleted')
    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image')
    ordered_at = orm.mapped_column(sa.Double, nullable=False,
                                   doc='when it was ordered, in seconds since the epoch')


class WarmRequestRow(Model):
    """An aggregate whose hosts an operator wants to be warm, until that is over for all of them."""

    __tablename__ = 'warm_requests'

    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image')
    aggregate = orm.mapped_column(_NAME, primary_key=True, doc='name of the host aggregate')
    requested_at = orm.mapped_column(sa.Double, nullable=False,
                                     doc='when it was asked for, in seconds since the epoch')


class SnapshotRow(Model):
    """A server's snapshot that is under way."""

    __tablename__ = 'snapshots'

    snapshot_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image that it becomes')
    node_id = orm.mapped_column(
        _NUMBER, sa.ForeignKey('storage_nodes.id', name='fk_snapshots_node_id'), nullable=False,
        doc='row of the node that makes it in storage_nodes')
    store = orm.mapped_column(sa.String(16), nullable=False,
                              doc='store that makes it: ``rbd`` or ``file``')
    host = orm.mapped_column(_NAME, nullable=False, doc='host that sends it; empty if not known')
    export = orm.mapped_column(_NAME, nullable=False,
                               doc='its name at exporters, which cannot be guessed')
    stage = orm.mapped_column(
        sa.String(16), nullable=False,
        doc='how far it is: ``begun``, ``finished``, ``doomed`` or ``withdrawn``')
    since = orm.mapped_column(sa.Double, nullable=False,
                              doc='when it reached that stage, in seconds since the epoch')
    base = orm.mapped_column(sa.Text, nullable=False,
                             doc='path of the base that it is made of, or its clone in Ceph')
    disk_format = orm.mapped_column(sa.String(16), nullable=False,
                                    doc='format of both; empty: not known')
    work = orm.mapped_column(
        sa.Text, nullable=False,
        doc='path of the file that becomes the image; what the host writes is beside it, in a qcow2'
            ' of that name with ``.overlay``; empty in Ceph')
    glance_store = orm.mapped_column(
        _NAME, nullable=False,
        doc='Glance\'s name of the store that registers that file; empty: it is uploaded')
    file = orm.mapped_column(
        _NAME, nullable=False,
        doc='inode, time of the last change in nanoseconds, and size of the file that was put into'
            ' that store, by which it is known again, with colons; empty before')
