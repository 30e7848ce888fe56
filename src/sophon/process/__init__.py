"""Process-level matters: forks, memory, cores, the user's folders, signals."""
