"""Ops made of other ops: some of them by chance, or several results of one picture."""
