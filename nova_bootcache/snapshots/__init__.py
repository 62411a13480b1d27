"""Snapshots of servers that are sent to the storage node as what differs from their base."""
