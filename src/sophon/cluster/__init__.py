"""Clusters of nodes: which node holds which data, where the nodes are, and what keeps them running."""
