"""Arrays in chunks, and volumes: HDF5, Zarr, xarray, NIfTI."""
