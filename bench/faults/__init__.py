"""Faults at every step of images' and servers' lives, on the real block path."""
