"""Verify published folders by the format page alone: a second implementation of `privlearn verify`.

It needs numpy, scipy and the JSON Schemas of docs/format, and imports neither privlearn nor torch.
"""

from privlearn_verify.epsilon_methods import compute_epsilons
from privlearn_verify.folder_verdict import check, check_folder
from privlearn_verify.verdicts import Report

__all__ = ["Report", "check", "check_folder", "compute_epsilons"]
