"""What alembic runs: migrates the connection that glance_bootcache/db/schema.py hands over."""

from alembic import context

from glance_bootcache.db import models

context.configure(connection=context.config.attributes['connection'],
                  target_metadata=models.Model.metadata)
with context.begin_transaction():
    context.run_migrations()
