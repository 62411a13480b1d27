"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None

# MariaDB has a part of it where a run was cut off.
_TABLE: dict[str, Any] = {'if_not_exists': True, 'mysql_engine': 'InnoDB',
                          'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}
_NUMBER = sa.BigInteger().with_variant(sa.Integer, 'sqlite')


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        'images',
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('last_used', sa.Double, nullable=False),
        **_TABLE)
    op.create_table(
        'hosts',
        sa.Column('id', _NUMBER, primary_key=True),
        sa.Column('name', sa.String(255), nullable=False, unique=True),
        sa.Column('needs', sa.String(16), nullable=False),
        **_TABLE)
    op.create_table(
        'host_images',
        sa.Column('host_id', _NUMBER,
                  sa.ForeignKey('hosts.id', name='fk_host_images_host_id', ondelete='CASCADE'),
                  primary_key=True),
        sa.Column('image_id', sa.String(36), primary_key=True),
        **_TABLE)
    if not sa.inspect(op.get_bind()).get_indexes('host_images'):
        op.create_index('ix_host_images_image_id', 'host_images', ['image_id'])
    op.create_table(
        'orders',
        sa.Column('host', sa.String(255), primary_key=True),
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('ordered_at', sa.Double, nullable=False),
        **_TABLE)
    op.create_table(
        'snapshots',
        sa.Column('snapshot_id', sa.String(36), primary_key=True),
        sa.Column('store', sa.String(16), nullable=False),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column('export', sa.String(255), nullable=False),
        sa.Column('stage', sa.String(16), nullable=False),
        sa.Column('since', sa.Double, nullable=False),
        sa.Column('base', sa.Text, nullable=False),
        sa.Column('disk_format', sa.String(16), nullable=False),
        sa.Column('work', sa.Text, nullable=False),
        sa.Column('glance_store', sa.String(255), nullable=False),
        sa.Column('file', sa.String(255), nullable=False),
        **_TABLE)
