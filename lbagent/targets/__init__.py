"""Data planes, each in its folder. One never imports another; what they share stands in sync."""
