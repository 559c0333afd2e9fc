"""PATE over Flower: hospitals keep their records, and answer a server's public questions.

`teacher_app(load)` is what each hospital runs, `FlowerTeachers(grid, count)` what the server gives
to `pv.pate`. Both take a `Summation`, by which the sites' answers are added up. Flower has to be
installed (`pip install privlearn[flower]`).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
