"""Adapters to frameworks: one framework a file, which alone imports it."""
