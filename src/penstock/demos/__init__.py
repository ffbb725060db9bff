"""What the command `penstock demo` runs. Nothing else in the package imports from here."""
