"""Every named privacy check holds on the code as it is."""

from __future__ import annotations

import accounting_checks  # noqa: F401 - registers its checks
import allowance_checks  # noqa: F401 - registers its checks
import apart_checks  # noqa: F401 - registers its checks
import certificate_checks  # noqa: F401 - registers its checks
import clipping_checks  # noqa: F401 - registers its checks
import data_checks  # noqa: F401 - registers its checks
import draw_checks  # noqa: F401 - registers its checks
import feature_checks  # noqa: F401 - registers its checks
import feature_run_checks  # noqa: F401
import feature_told_checks  # noqa: F401
import group_checks  # noqa: F401 - registers its checks
import leak_checks  # noqa: F401 - registers its checks
import ledger_checks  # noqa: F401 - registers its checks
import mac_coefficient_checks  # noqa: F401 - registers its checks
import mac_run_checks  # noqa: F401
import mac_sensitivity_checks  # noqa: F401
import noise_checks  # noqa: F401 - registers its checks
import pate_checks  # noqa: F401 - registers its checks
import pate_keeping_checks  # noqa: F401 - registers its checks
import pate_study_checks  # noqa: F401 - registers its checks
import published_checks  # noqa: F401 - registers its checks
import publishing_checks  # noqa: F401 - registers its checks
import pytest
import reproduce_checks  # noqa: F401 - registers its checks
import resume_checks  # noqa: F401 - registers its checks
import run_checks  # noqa: F401 - registers its checks
import segmentation_checks  # noqa: F401 - registers its checks
import shared_ledger_checks  # noqa: F401 - registers its checks
import size_checks  # noqa: F401 - registers its checks
import teachers_checks  # noqa: F401 - registers its checks
import tune_checks  # noqa: F401 - registers its checks
import validation_checks  # noqa: F401 - registers its checks
import warning_checks  # noqa: F401 - registers its checks
from checks import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_check_holds(name: str) -> None:
    CHECKS[name]()
    assert name.startswith("check_")
