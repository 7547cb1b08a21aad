"""Checks whether this host is ready for a job, and prints a fix for each problem."""
