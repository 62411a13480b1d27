"""What storage nodes tell each other."""

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'


def upgrade() -> None:
    """Add the columns; MariaDB has a part of them where a run was cut off."""
    there = {column['name'] for column in sa.inspect(op.get_bind()).get_columns('storage_nodes')}
    for column in (sa.Column('wish', sa.String(16)), sa.Column('rpc', sa.String(16)),
                   sa.Column('look_rules', sa.Integer), sa.Column('free_bytes', sa.BigInteger)):
        if column.name not in there:
            op.add_column('storage_nodes', column)
