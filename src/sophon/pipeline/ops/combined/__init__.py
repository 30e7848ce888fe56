"""Ops made of other ops: random selections, and several results from one picture."""
