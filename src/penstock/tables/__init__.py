"""Tables and text: Parquet, Arrow, CSV, JSON Lines, lines, Hugging Face datasets, Lance."""
