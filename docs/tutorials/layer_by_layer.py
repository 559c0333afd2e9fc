# %% [markdown]
# # DP-MAC: layer by layer
# Each layer has an objective, whose derivatives are bounded and released; see [DP-MAC](../methods.md#dp-mac).

# %%
import torch

import privlearn as pv

data = pv.load("digits")
network = torch.nn.Sequential(
    torch.nn.Flatten(),
    torch.nn.Linear(64, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)

# %% [markdown]
# ## The plan is that of DP-SGD, but for the clip
# `Derivatives` bounds each layer's derivatives, and all layers are released together.

# %%
plan = pv.Plan(
    pv.Poisson(0.18), epochs=30, clip=pv.mac.Derivatives(0.3), examples=1437
)
plan = plan.calibrate(epsilon=4.0, delta=1e-5)
result = pv.dpmac(
    plan,
    network,
    "binary_cross_entropy",
    data,
    optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
)
print(plan.guarantee(delta=1e-5))
print(pv.evaluate(result, data))
