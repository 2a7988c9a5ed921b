"""What all commands share: how one is run, its flags and what they mean, its output, and the cache of programs."""
