# %% [markdown]
# # PATE between three hospitals
# Each hospital keeps its records and trains teachers at home. They vote on public inputs. One party, whom all trust,
# counts the votes: exact votes are not private, and go to no other party. What leaves it is noisy: a student that
# learned from noisy counts.
#
# What each hospital must trust:
#
# - **The trusted party**, the aggregator, sees how each teacher of each hospital voted on each public input, and adds
#   the noise. Votes may tell of records. It must keep them to itself, use fresh noise, ask no more than was planned,
#   and delete the files. It does not need the records, and should not get them.
# - **The other hospitals** see neither its records nor its votes. If another one gives a record to two teachers, that
#   one's records are protected less, not these. Wrong votes cost accuracy. A patient with a record in each of two
#   hospitals has two teachers: `PatePlan(..., group_size=2)` is for both records together.
# - **Itself**: each of its records is with one teacher, chosen without a look at other records.
# - **Those who get the student** need no trust: the guarantee is against them. The public inputs are not protected.

# %%
import secrets
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import privlearn as pv

data = pv.load("digits")
public, test_x, test_y = data.x_test[:200], data.x_test[200:], data.y_test[200:]

# %% [markdown]
# ## At each hospital: ten teachers, each on records that no other has
# Each record's teacher is drawn by itself and kept secret. Don't deal records out by position (in turn, in blocks, or
# shuffled into equal parts): neighbours differ in one added or removed record, and with one less, later ones would
# change their teacher. With several records of a patient, draw a teacher for each patient. The first line of the loop
# stands for the hospitals' own records: it makes no teachers.

# %%
folder, answers = Path(tempfile.mkdtemp()), []
for hospital in range(3):
    rows = np.arange(hospital, len(data.x), 3)  # those that it has
    drawn = np.random.default_rng(secrets.randbits(128)).integers(
        10, size=len(rows)
    )
    for teacher in range(10):
        own = rows[drawn == teacher]
        trained = LogisticRegression(max_iter=300).fit(
            data.x[own].reshape(len(own), -1), data.y[own]
        )
        answers.append(
            str(folder / f"hospital-{hospital}-teacher-{teacher}.npz")
        )
        np.savez(
            answers[-1],
            predictions=trained.predict(public[:60].reshape(60, -1)),
        )

# %% [markdown]
# ## At the trusted party: noisy votes, and a student
# With 30 teachers the noise is loud; twice the teachers have half the share of noise.

# %%
plan = pv.teachers.PatePlan(
    queries=60, teachers=30, aggregate=pv.teachers.Votes(classes=10)
)
plan = plan.calibrate(epsilon=8.0, delta=1e-5)
pool = pv.Dataset(public, low=data.low, high=data.high, public=True)
student = pv.teachers.Student(
    lambda shape: torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 10)
    )
)
result = pv.pate(plan, pv.teachers.Given(answers), None, pool, student)
print(f"noise of {plan.noise_std:.1f} votes on each count")
print(plan.guarantee(delta=1e-5))
tested = pv.Dataset(
    test_x, test_y, test_x, test_y, classes=10, low=data.low, high=data.high
)
print(pv.evaluate(result, tested))
