"""Functions of the package beside the handle: constructors of datasets, statistics, headroom, replay."""
