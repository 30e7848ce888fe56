"""``sophon bench store`` and ``sophon bench manifest``."""
