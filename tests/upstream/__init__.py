"""TensorFlow's own tests of its distributed parts, run with its servers' protocol replaced."""
