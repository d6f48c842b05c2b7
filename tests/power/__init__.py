"""Power cuts: what a disk holds after one, from a trace of system calls, and whether the same command mends it."""
