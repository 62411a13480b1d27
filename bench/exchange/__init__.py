"""One file to many hosts at once, by exchange and by plain copies, on links of a stated rate."""
