# cython: language_level=3, freethreading_compatible=True
"""Refuses gRPC's threads for calls beyond a bound, in place of the kernel.

gRPC starts a thread for each call and asks `pthread_create` for it. If that fails, gRPC rejects the call by itself
(RESOURCE_EXHAUSTED), in its own threads, and goes on. So `bounded_threads.c` puts a function that fails beyond a bound
in its place.

Concurrency: counters are atomic; `bound` may be called at any time.
"""

cdef extern int bound_install() nogil
cdef extern void bound_set(int most) nogil
cdef extern int bound_count() nogil
cdef extern long bound_refusals() nogil


def bound(int most):
    """Let gRPC have at most so many threads for calls; return whether that could be arranged."""
    bound_set(most)
    return bound_install() > 0


def running():
    """Return how many threads there are that count."""
    return bound_count()


def refused():
    """Return how many threads were refused."""
    return bound_refusals()
