"""The files of a host's cache images: names, and what is noted of each."""
