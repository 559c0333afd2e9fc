"""Digits are classified by a vision transformer."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class ViT(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 2, 32, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 2, enable_nested_tensor=False
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        cls_token = self.cls_token.expand(len(x), -1, -1)
        x = torch.cat([cls_token, x], dim=1) + self.places
        return self.head(self.encoder(x)[:, 0])


torch.manual_seed(1)
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x).float().view(-1, 1, 8, 8) / 16, torch.tensor(y)
rows = TensorDataset(x[:1200], y[:1200])
train_loader = DataLoader(rows, batch_size=60, shuffle=True)
model = ViT()
criterion = nn.CrossEntropyLoss()
optimizer = optim.AdamW(model.parameters(), lr=0.01)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
for epoch in range(3):
    model.train()
    total_loss = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        right = model(x[1200:]).argmax(1) == y[1200:]
    print(f"epoch {epoch}: accuracy {right.float().mean().item():.2f}")
