"""The built-in routes, by what they are about."""
