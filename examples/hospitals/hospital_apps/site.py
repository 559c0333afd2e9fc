"""What each hospital runs: its records and its teacher stay here, and its answers go out."""

from __future__ import annotations

import numpy as np
from flwr.app import Context
from sklearn.linear_model import LogisticRegression

from privlearn.flower import teacher_app


def train_teacher(context: Context) -> LogisticRegression:
    """A model of this hospital's records, which its SuperNode names in `--node-config`."""
    with np.load(str(context.node_config["records"])) as records:
        return LogisticRegression(C=0.1, max_iter=500).fit(records["x"], records["y"])


client_app = teacher_app(train_teacher)
