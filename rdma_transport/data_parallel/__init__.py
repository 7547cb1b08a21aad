"""What ``rdma-transport run --data-parallel`` puts into the ranks of a script for one process."""
