"""Private learning over Flower: hospitals and other clients keep their records.

PATE: `teacher_app(load)` is what each hospital runs, `FlowerTeachers(grid, count)` what the server
gives to `pv.pate`. DP-FedAvg: `training_app(build_model, train)` is what each client runs,
`train_federated(grid, model, plan)` what the server calls. Flower has to be installed
(`pip install privlearn[flower]`).
"""

from __future__ import annotations

from privlearn._lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
