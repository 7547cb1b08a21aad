"""Measurements: both protocols alternating in one run, medians and ratios."""
