"""A look at elements: which (`_elements`), as what (`_panels`, `_captions`), drawn by Matplotlib (`_figure`)."""
