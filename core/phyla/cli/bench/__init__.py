"""Measurements that `phyla bench` runs."""
