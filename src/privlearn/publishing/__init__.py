"""Publishing: weights, certificate and card in one folder, and the check that anyone can run on
it.
"""
