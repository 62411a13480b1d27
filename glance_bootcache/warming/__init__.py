"""Warming hosts before servers ask."""
