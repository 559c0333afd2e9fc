"""Runs of other libraries: what their accountants hold, priced by privlearn's accountant.

The result is a declared run, which is no certificate. It has a format and a type of its own, and
every reader of certificates refuses it. Which events there were is taken on trust. What they cost
is recomputed.
"""
