"""Servers come to stand on a full base of their own."""
