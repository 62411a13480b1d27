"""The demo: an image registered in Glance boots from its own cache image in Nova."""
