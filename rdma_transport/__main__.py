"""Where the command ``rdma-transport`` begins; the same as ``python -m rdma_transport``."""

import sys


def main() -> None:
    """Run it; Ctrl-C while it is being loaded ends it like any later one."""
    try:
        from rdma_transport import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
