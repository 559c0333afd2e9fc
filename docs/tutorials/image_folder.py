# %% [markdown]
# # Images from a folder
# One folder for each class, as scanners and cameras leave them. The images are drawn here: bright squares and stripes.

# %%
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import privlearn as pv

rng = np.random.default_rng(0)
root, classes = Path(tempfile.mkdtemp()), ("square", "stripes")
for label in classes:
    (root / label).mkdir()
    for number in range(400):
        image = rng.integers(0, 120, (12, 12), dtype=np.uint8)
        if label == "square":
            image[3:9, 3:9] += 100
        else:
            image[::3] += 100
        Image.fromarray(image).save(root / label / f"{number}.png")

# %% [markdown]
# ## Read them
# Classes and the range of the pixels are declared. Which file is which is private, so nothing is printed of it.

# %%
files = [
    (path, classes.index(path.parent.name))
    for path in sorted(root.rglob("*.png"))
]
order = rng.permutation(len(files))
x = np.stack([np.asarray(Image.open(files[i][0])) for i in order])[:, None]
y = np.array([files[i][1] for i in order])
data = pv.Dataset(
    x[:700], y[:700], x[700:], y[700:], classes=2, low=0.0, high=255.0
)

# %% [markdown]
# ## A small convolutional network
# Its test figures are exact: of private images they would have to be paid for, by `pv.evaluate(..., paid=)`.

# %%
plan = pv.Plan(
    pv.Poisson(0.1), epochs=10, clip=pv.Flat(0.1), examples=700
).calibrate(epsilon=3.0, delta=1e-5)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(200, 2),
)
loss = torch.nn.CrossEntropyLoss(reduction="none")
result = pv.dpsgd(
    plan,
    model,
    loss,
    data,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=5.0),
)
print(plan.guarantee(delta=1e-5))
print(pv.evaluate(result, data))
