"""Contract suites, oracles and tiny checkpoints, for plugin authors and for our own tests."""
