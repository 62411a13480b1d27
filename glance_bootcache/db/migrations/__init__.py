"""The schema's migrations, as alembic runs them."""
