"""Fay et al. 2020, and the votes of Papernot et al. 2018: teachers that answer with noise, and
students.
"""
