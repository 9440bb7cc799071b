"""The `phyla` command line."""
