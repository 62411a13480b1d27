"""Snapshots of servers that share with their base what they have in common."""
