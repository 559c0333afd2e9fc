# %% [markdown]
# # A script that was written for Opacus
# One import changes. The loop stays, and the model can be published with a certificate afterwards.

# %%
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.opacus import PrivacyEngine  # was: from opacus import ...

x = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
loader = DataLoader(
    TensorDataset(x, (x[:, 0] > 0).long()), batch_size=100, shuffle=True
)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()

# %% [markdown]
# ## The engine

# %%
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    target_epsilon=3.0,
    target_delta=1e-5,
    epochs=3,
    max_grad_norm=1.0,
)
for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    spent = engine.get_epsilon(delta=1e-5)
    print(f"after epoch {epoch + 1}: epsilon {spent:.3f}")

# %% [markdown]
# ## What Opacus does not have: a certificate

# %%
folder = Path(tempfile.mkdtemp()) / "model"
engine.publish(folder)
checked = pv.verify(folder)
print(checked.ok, checked.epsilon)
