"""Glance's file store: its driver that names images by id only, and files that share extents."""
