"""Plans: graphs of nodes that say what element `i` of epoch `e` is.

No threads, and no I/O except through the sources that a run opens. `_node.py` is the idea; `_reader.py` reads a plan;
each other file holds one kind of node.
"""
