"""Servers whose guests are paused by an I/O error: they wait, and resume by themselves."""
