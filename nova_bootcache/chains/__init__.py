"""The chains of a host's servers, and the host that is made of all parts."""
