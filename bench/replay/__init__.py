"""Recorded boots, replayed through the real block path on many hosts at once (see __main__.py)."""
