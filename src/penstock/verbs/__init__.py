"""The longer parts of verbs: their checks, labels, lengths, joins, folds, and the element cache."""
