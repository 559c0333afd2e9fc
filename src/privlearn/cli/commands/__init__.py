"""The commands, a file each: what they are asked for is in a `Request`, and what they return is the
exit code.
"""
