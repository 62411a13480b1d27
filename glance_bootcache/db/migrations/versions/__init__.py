"""One module a migration; alembic orders them by their revisions."""
