"""Whether this host is ready for a job: checks, each with the line that mends what it finds."""
