"""The next word is predicted by an LSTM, or by a transformer."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class RNNModel(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.encoder = nn.Embedding(words, 16)
        self.rnn = nn.LSTM(16, 32, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.decoder = nn.Linear(32, words)

    def forward(self, tokens):
        output, _ = self.rnn(self.encoder(tokens))
        return self.decoder(self.dropout(output))


class TransformerModel(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.encoder = nn.Embedding(words, 16)
        self.places = nn.Parameter(0.1 * torch.randn(12, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(16, words)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        output = self.encoder(tokens) + self.places
        return self.decoder(self.layers(output, mask=mask, is_causal=True))


torch.manual_seed(1)
words, length = 20, 12
starts, steps = torch.randint(words, (640, 1)), torch.randint(1, 4, (640, 1))
texts = (starts + steps * torch.arange(length + 1)) % words
train_loader = DataLoader(
    TensorDataset(texts[:600]), batch_size=60, shuffle=True
)
kind = TransformerModel if "transformer" in sys.argv else RNNModel
model = kind(words)
optimizer = optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    model.train()
    for (text,) in train_loader:
        optimizer.zero_grad()
        output = model(text[:, :-1])
        loss = criterion(output.reshape(-1, words), text[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        output = model(texts[600:, :-1])
        loss = criterion(output.reshape(-1, words), texts[600:, 1:].reshape(-1))
    print(f"epoch {epoch}: perplexity {loss.exp().item():.1f}")
