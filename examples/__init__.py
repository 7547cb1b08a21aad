"""Training jobs to try the transport with."""
