"""Tests of privlearn, with its entry points where the installed metadata lack them."""

from tests.support.installed import make_entry_points_visible

make_entry_points_visible()
