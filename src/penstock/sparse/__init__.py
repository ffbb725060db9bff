"""Sparse rows: CSR matrices in memory and in files, and h5ad."""
