"""Glance as it is used here: its API, its notifications, and what tenants are told."""
