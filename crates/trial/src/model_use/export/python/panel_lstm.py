class Network(nn.Module):
    """features [batch, time, features], normalized as config.json's `columns` say, and symbols [batch], places in its `symbols`;
    out [batch, 1]: the return less `target.mean` over `target.deviation`, or the logit of a rise."""

    def __init__(self, config):
        super().__init__()
        model, panel = config["model"], config["panel"]
        width, layers = model["symbol_width"], model["num_layers"]
        self.symbols = nn.Embedding(panel["symbols"], width)
        between = model["dropout"] if layers > 1 else 0.0
        self.rnn = nn.LSTM(panel["features"] + width, model["hidden"], layers, dropout=between, batch_first=True)
        self.drop = nn.Dropout(model["dropout"])
        self.head = nn.Linear(model["hidden"], 1)

    def forward(self, features, symbols):
        symbol = self.symbols(symbols).unsqueeze(1).expand(-1, features.shape[1], -1)
        x, _ = self.rnn(torch.cat([features, symbol], dim=2))
        return self.head(self.drop(x[:, -1]))
