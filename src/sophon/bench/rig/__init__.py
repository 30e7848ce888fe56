"""Two nodes on one machine: a storage node and a trainer, with a known link rate and number of CPUs.

With root and iproute2 the nodes are network namespaces joined by a veth pair that the kernel shapes (`namespaces`);
otherwise both are on loopback and the server limits its own rate (`sophon serve --limit`). Either way, server and
trainer are real processes (`processes`), each pinned to a CPU, and fractions of a storage core are enforced by a cgroup
quota (`quota`). `testbed.Testbed` combines all of this.
"""
