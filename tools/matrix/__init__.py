"""Ours on several releases: what tools/matrix.sh runs."""
