# %% [markdown]
# # Noise that falls over the epochs
# Late steps need less noise than early ones, perhaps. A schedule is a shape, and calibration scales it to the target.

# %%
import torch

import privlearn as pv

data = pv.load("digits")
schedules = {
    "constant": pv.schedules.Constant(),
    "falling": pv.schedules.Exponential(k=0.05),
}
plans = {
    name: pv.Plan(
        pv.Poisson(0.18), epochs=30, schedule=schedule, examples=1437
    ).calibrate(epsilon=2.0, delta=1e-5)
    for name, schedule in schedules.items()
}
for name, plan in plans.items():
    noise = plan.noise_multipliers()
    print(f"{name}: {noise[0]:.2f} to {noise[-1]:.2f}")
    print(plan.guarantee(delta=1e-5))

# %%
axes = plans["falling"].plot()

# %% [markdown]
# ## The same target, two runs
# Test figures are exact and of public rows here. Choosing the better schedule by private rows would cost privacy.

# %%
loss = torch.nn.CrossEntropyLoss(reduction="none")
for name, plan in plans.items():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    result = pv.dpsgd(
        plan, model, loss, data, optimizer=lambda p: torch.optim.SGD(p, lr=20.0)
    )
    print(name, pv.evaluate(result, data))
