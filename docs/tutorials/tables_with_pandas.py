# %% [markdown]
# # A table, with pandas
# A data frame becomes private features by a schema: bounds and categories are declared, never read off the rows. The
# rows are made up here, so they can be shown; yours come from `pandas.read_csv`.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import privlearn as pv
from privlearn.data.schema import Category, Number, Schema

rng = np.random.default_rng(0)
age, sex = rng.integers(18, 95, 2000), rng.choice(["f", "m"], 2000)
ill = rng.random(2000) < 1 / (1 + np.exp(-(age - 60) / 8))
people = pd.DataFrame(
    {"age": age, "sex": sex, "ill": np.where(ill, "yes", "no")}
)
print(people.head(3))

# %% [markdown]
# ## Declare what is public
# Values outside the bounds count as the bounds. The number of examples is declared, too: it need not be exact.

# %%
schema = Schema(
    "ill", ("no", "yes"), (Number("age", 0, 110), Category("sex", ("f", "m")))
)
data = pv.load(people[:1600], schema=schema, test=people[1600:])

# %% [markdown]
# ## Train, publish, verify
# These test figures are exact, and the test rows made up. Of private rows they would have to be paid for: `paid=`.

# %%
result = pv.train(data, epsilon=2.0, examples=1600)
print(result.ledger.guarantee(1e-5))
print(pv.evaluate(result, data))
folder = Path(tempfile.mkdtemp()) / "model"
pv.publish(result, folder)
print(pv.verify(folder).ok)
