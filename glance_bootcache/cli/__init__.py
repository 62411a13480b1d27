"""The ``bootcache`` command: one file a topic."""
