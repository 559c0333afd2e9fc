"""Images become twice as wide and high by subpixel convolution."""

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))


torch.manual_seed(1)
large = torch.tensor(load_digits().data).float().view(-1, 1, 8, 8) / 16
small = nn.functional.avg_pool2d(large, 2)
rows = TensorDataset(small[:1200], large[:1200])
train_loader = DataLoader(rows, batch_size=60, shuffle=True)
model = Net(upscale_factor=2)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=0.003)
for epoch in range(3):
    epoch_loss = 0
    for batch in train_loader:
        inputs, target = batch[0], batch[1]
        optimizer.zero_grad()
        loss = criterion(model(inputs), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = criterion(model(small[1200:]), large[1200:])
    print(f"epoch {epoch}: PSNR {-10 * error.log10().item():.1f} dB")
