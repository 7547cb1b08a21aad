"""``horovod.runner.common.util.env``, the part that programs use."""

import os


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and size by the variables of the launcher; 0 and 1 without one."""
    for name in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        rank, size = os.environ.get(f"{name}_RANK"), os.environ.get(f"{name}_SIZE")
        if rank is not None and size is not None:
            return int(rank), int(size)
    return 0, 1
