"""Looking at running jobs from outside: status, metrics, timelines. Needs no TensorFlow."""
