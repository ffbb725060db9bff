"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Sparse rows."""
    add("penstock.inspect", {".h5ad": "penstock.sparse._inspect:cells", ".npz": "penstock.sparse._inspect:npz"})
    add("penstock.sources", {name: f"penstock.sparse.csr:{name}" for name in ("from_csr", "from_h5ad")})
    add("penstock.calls", {"csr_batch": "penstock.sparse._rows:CompressedRows"})
