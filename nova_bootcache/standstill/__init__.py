"""Servers whose guests stand still by an I/O error: they wait, and go on by themselves."""
