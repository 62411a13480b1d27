"""What comes by the message bus, before anybody acts on it: read, refused, counted."""
