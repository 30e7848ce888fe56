"""Two nodes on one machine: a storage node and a trainer, a link between them of a known rate, CPUs of a known number.

With root and iproute2 the nodes are network namespaces joined by a veth pair that the kernel shapes (`namespaces`);
otherwise both are on loopback and the server holds back what it sends (`sophon serve --limit`). Either way server and
trainer are real processes (`processes`), pinned to a CPU each, and fractions of a storage core are a cgroup's quota
(`quota`). `testbed.Testbed` puts it together.
"""
