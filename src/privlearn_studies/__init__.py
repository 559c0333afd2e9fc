"""Tables and figures of the papers, computed again: one module each, listed in `registry`."""
