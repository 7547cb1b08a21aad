"""Example training jobs that use the transport."""
