"""What the measurements, the examples and the tests share."""
