"""``horovod.tensorflow.data.compute_worker``: ranks of a service that computes datasets."""

import argparse

import horovod.tensorflow as hvd
from rdma_transport.horovod.compute_service import serve


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Serve until the service is shut down."""
    hvd.init()
    serve(hvd.rank(), hvd.size(), dispatchers, dispatcher_side, configfile, timeout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A rank of a service that computes datasets.")
    parser.add_argument("configfile", help="written for those who use the service")
    parser.add_argument("--dispatchers", type=int, default=1)
    parser.add_argument("--dispatcher-side", default="compute", choices=("compute", "training"))
    parser.add_argument("--timeout", type=float, default=60, help="seconds")
    given = parser.parse_args()
    main(given.dispatchers, given.dispatcher_side, given.configfile, given.timeout)
