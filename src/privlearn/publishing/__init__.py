"""This package writes weights, certificate and card into one folder, and has the check that anyone
can run on it.
"""
