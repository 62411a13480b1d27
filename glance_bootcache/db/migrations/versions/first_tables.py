"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '0001'
down_revision = None

# MariaDB has a part of it where a run was cut off.
_TABLE: dict[str, Any] = {'if_not_exists': True, 'mysql_engine': 'InnoDB',
                          'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin'}
_NUMBER = sa.BigInteger().with_variant(sa.Integer, 'sqlite')
_BODY = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB, 'mysql', 'mariadb')


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        'identity',
        sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('uuid', sa.String(36), nullable=False),
        **_TABLE)
    op.create_table(
        'storage_nodes',
        sa.Column('id', _NUMBER, primary_key=True),
        sa.Column('uuid', sa.String(36), nullable=False, unique=True),
        sa.Column('name', sa.String(255), nullable=False, unique=True),
        sa.Column('beat', sa.BigInteger, nullable=False),
        sa.Column('state', sa.String(16), nullable=False),
        **_TABLE)
    op.create_table(
        'images',
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('node_id', _NUMBER,
                  sa.ForeignKey('storage_nodes.id', name='fk_images_node_id'), nullable=False),
        sa.Column('term', sa.BigInteger, nullable=False),
        sa.Column('version', sa.BigInteger, nullable=False),
        sa.Column('last_used', sa.Double),
        sa.Column('standing', sa.String(16), nullable=False),
        sa.Column('goal', sa.String(16), nullable=False),
        sa.Column('reason', sa.String(32), nullable=False),
        sa.Column('detail', sa.Text, nullable=False),
        sa.Column('image_hash', sa.String(255), nullable=False),
        sa.Column('updated_at', sa.String(32), nullable=False),
        sa.Column('taken_up_at', sa.Double, nullable=False),
        sa.Column('held', sa.Boolean, nullable=False),
        sa.Column('requested', sa.Boolean, nullable=False),
        sa.Column('pinned', sa.Boolean, nullable=False),
        sa.Column('quota', sa.BigInteger, nullable=False),
        sa.Column('boot_marker', sa.String(512), nullable=False),
        sa.Column('settle', sa.Boolean, nullable=False),
        sa.Column('generation', sa.BigInteger, nullable=False),
        sa.Column('visibility', sa.String(16), nullable=False),
        sa.Column('warm_due', sa.Boolean, nullable=False),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('owner', sa.String(255), nullable=False),
        sa.Column('availability', sa.String(32), nullable=False),
        sa.Column('base_path', sa.Text, nullable=False),
        sa.Column('base_hash', sa.String(255), nullable=False),
        sa.Column('base_export', sa.String(255), nullable=False),
        sa.Column('base_file', sa.String(80)),
        sa.Column('image_format', sa.String(16), nullable=False),
        sa.Column('stored_bytes', sa.BigInteger, nullable=False),
        sa.Column('virtual_bytes', sa.BigInteger, nullable=False),
        sa.Column('built_from', sa.String(64), nullable=False),
        sa.Column('look_rules', sa.Integer, nullable=False),
        sa.Column('signed_as', sa.String(64), nullable=False),
        sa.Column('signature', sa.String(64), nullable=False),
        sa.Column('working_set_sha256', sa.String(64)),
        sa.Column('working_set_bytes', sa.BigInteger),
        sa.Column('working_set_extents', sa.BigInteger),
        sa.Column('working_set_granularity', sa.BigInteger),
        sa.Column('working_set_recorded_by', sa.String(16)),
        sa.Column('working_set_ended_by', sa.String(16)),
        sa.Column('working_set_boot_seconds', sa.Double),
        sa.Column('working_set_boot_marker', sa.String(512)),
        sa.Column('working_set_version', sa.Integer),
        sa.Column('cache_file', sa.String(64)),
        sa.Column('cache_bytes', sa.BigInteger),
        sa.Column('cache_data_bytes', sa.BigInteger),
        sa.Column('cache_extents', sa.BigInteger),
        sa.Column('cache_sha256', sa.String(64)),
        sa.Column('cache_virtual_bytes', sa.BigInteger),
        sa.Column('cache_cluster_bytes', sa.BigInteger),
        sa.Column('cache_quota', sa.BigInteger),
        sa.Column('cache_backing_uri', sa.Text),
        sa.Column('cache_build_seconds', sa.Double),
        sa.Column('cache_verify_rules', sa.Integer),
        sa.Column('difference_parent', sa.String(36)),
        sa.Column('difference_parent_hash', sa.String(255)),
        sa.Column('difference_bytes', sa.BigInteger),
        sa.Column('difference_sha256', sa.String(64)),
        sa.Column('difference_layout_at', sa.BigInteger),
        sa.Column('difference_data_bytes', sa.BigInteger),
        sa.Column('difference_content', sa.String(64)),
        **_TABLE)
    op.create_table(
        'working_sets',
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('sha256', sa.String(64), primary_key=True),
        sa.Column('body', _BODY, nullable=False),
        **_TABLE)
    op.create_table(
        'files',
        sa.Column('node_id', _NUMBER,
                  sa.ForeignKey('storage_nodes.id', name='fk_files_node_id'), primary_key=True),
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('name', sa.String(255), primary_key=True),
        sa.Column('kind', sa.String(16), nullable=False),
        sa.Column('state', sa.String(16), nullable=False),
        sa.Column('made_at', sa.Double, nullable=False),
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
        'warm_requests',
        sa.Column('image_id', sa.String(36), primary_key=True),
        sa.Column('aggregate', sa.String(255), primary_key=True),
        sa.Column('requested_at', sa.Double, nullable=False),
        **_TABLE)
    op.create_table(
        'snapshots',
        sa.Column('snapshot_id', sa.String(36), primary_key=True),
        sa.Column('node_id', _NUMBER,
                  sa.ForeignKey('storage_nodes.id', name='fk_snapshots_node_id'), nullable=False),
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
