"""What a process is: forks, memory, cores, the user's folders, signals."""
