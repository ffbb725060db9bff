"""What this pack brings; see `base/_extensions.py`."""

from penstock.base._extensions import Add


def register(add: Add) -> None:
    """Keras, torch, JAX and TensorFlow."""
    add("penstock.sources", {"from_tf": "penstock.adapters._from_tf:from_tf"})
    add(
        "penstock.calls",
        {
            "to_keras": "penstock.adapters.keras:KerasAdapter",
            "to_torch": "penstock.adapters.torch:TorchAdapter",
            "to_jax": "penstock.adapters.jax:adapt",
            "to_tf": "penstock.adapters.tf:to_dataset",
        },
    )
