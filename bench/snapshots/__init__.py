"""Snapshots of servers, ours beside stock Nova's: what they move, store, and how long they take."""
