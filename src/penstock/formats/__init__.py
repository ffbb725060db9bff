"""Formats of files besides plain arrays: tar, TFRecord, tables, text, Hugging Face, ETL. `_records.py` comes first."""
