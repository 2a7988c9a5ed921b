"""Shared by all commands: running, flags, output, and the cache of compiled programs."""
