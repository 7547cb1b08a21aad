"""``python -m mpi4py``."""

from mpi4py.run import main

if __name__ == "__main__":
    main()
