"""Who floods a node from outside, with connections, calls or bytes, is shut out."""
