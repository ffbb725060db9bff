"""What is wanted: a tree of nodes that says what element `i` of epoch `e` is.

No threads, no clock, and no I/O but through the sources that a run opens. `_node.py` is the idea;
`_reader.py` is how a plan is read; then one kind of node a file.
"""
