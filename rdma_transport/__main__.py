"""Entry point of the command ``rdma-transport``, and of ``python -m rdma_transport``."""

import sys


def main() -> None:
    """Run the command. Ctrl-C during the import ends it with exit code 130, as later on."""
    try:
        from rdma_transport import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
