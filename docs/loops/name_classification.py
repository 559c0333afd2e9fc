"""Names are classified by their letters, by a recurrent network."""

import string

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

LETTERS = "." + string.ascii_lowercase
ENDINGS = ["ini", "ov", "sen", "ez"]  # of four made-up languages


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 12)
        self.gru = nn.GRU(12, 32, batch_first=True)
        self.linear = nn.Linear(32, len(ENDINGS))

    def forward(self, name):
        _, hidden = self.gru(self.embedding(name))
        return torch.log_softmax(self.linear(hidden[0]), dim=1)


def encode(name):
    return torch.tensor(
        [LETTERS.index(letter) for letter in name.rjust(9, ".")]
    )


torch.manual_seed(1)
language = torch.randint(len(ENDINGS), (700,))
stems = torch.randint(1, len(LETTERS), (700, 5)).tolist()
names = torch.stack(
    [
        encode("".join(LETTERS[i] for i in stem) + ENDINGS[kind])
        for stem, kind in zip(stems, language.tolist(), strict=True)
    ]
)
rows = TensorDataset(names[:600], language[:600])
train_loader = DataLoader(rows, batch_size=60, shuffle=True)
model = RNN()
criterion = nn.NLLLoss()
optimizer = optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    for name, category in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(name), category)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = model(names[600:]).argmax(1) == language[600:]
    print(f"epoch {epoch}: accuracy {right.float().mean().item():.2f}")
