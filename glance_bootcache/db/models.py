"""The tables of the storage service's database: doc/source/formats.rst has them column by column.

Types hold for InnoDB with utf8mb4, PostgreSQL and SQLite. Names compare byte by byte: MariaDB's
usual collation takes ``Host-1`` and ``host-1`` for the same.
"""

import sqlalchemy as sa
from sqlalchemy import orm

_TABLE = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}
_UUID = sa.String(36)
_NAME = sa.String(255)
# A statement that may insert a row takes a number also where the row is there. SQLite's own have 64
# bits.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


class Model(orm.DeclarativeBase):
    """All tables; ``Model.metadata`` is what the migrations have to end in."""

    __table_args__: object = _TABLE


class ImageRow(Model):
    """An image that the storage service works on."""

    __tablename__ = 'images'

    image_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image in Glance')
    last_used = orm.mapped_column(
        sa.Double, nullable=False,
        doc='when a server last booted from its cache image, in seconds since the epoch')


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


class SnapshotRow(Model):
    """A server's snapshot that is under way."""

    __tablename__ = 'snapshots'

    snapshot_id = orm.mapped_column(_UUID, primary_key=True, doc='id of the image that it becomes')
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
