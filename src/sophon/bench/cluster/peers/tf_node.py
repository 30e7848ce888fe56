"""A dispatcher or a worker of tf.data service, as a process.

Usage: ``python -m sophon.bench.cluster.peers.tf_node dispatcher HOST:PORT`` or ``… worker HOST:PORT DISPATCHER``.
"""

from __future__ import annotations

import sys

import tensorflow as tf

READY = "the node is ready"


def main(role: str, place: str, dispatcher: str = "") -> None:
    """Run the dispatcher or worker until the process is ended."""
    service = tf.data.experimental.service
    host, _, port = place.rpartition(":")
    if role == "dispatcher":
        node = service.DispatchServer(service.DispatcherConfig(port=int(port)))
    else:
        told = service.WorkerConfig(
            dispatcher_address=dispatcher, worker_address=f"{host}:%port%", port=int(port), heartbeat_interval_ms=1000
        )
        node = service.WorkerServer(told)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    node.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
