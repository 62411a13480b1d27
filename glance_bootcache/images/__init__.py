"""The life of an image: events, decisions, work."""
