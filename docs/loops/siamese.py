"""Pairs of digits are compared by two networks with the same weights."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 16, torch.tensor(y)
halves = x[:600], x[600:1200], y[:600], y[600:1200]  # one pair for each example
train_loader = DataLoader(TensorDataset(*halves), batch_size=60, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(288, 16),
)
optimizer = optim.Adadelta(model.parameters(), lr=0.5)
criterion = nn.CosineEmbeddingLoss(margin=0.2)
for epoch in range(3):
    for image_1, image_2, class_1, class_2 in train_loader:
        optimizer.zero_grad()
        target = torch.where(class_1 == class_2, 1.0, -1.0)
        loss = criterion(model(image_1), model(image_2), target)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        near = torch.cosine_similarity(model(x[1200:1490]), model(x[1490:1780]))
        same = y[1200:1490] == y[1490:1780]
    gap = near[same].mean() - near[~same].mean()
    print(f"epoch {epoch}: equal digits are nearer by {gap:.2f}")
