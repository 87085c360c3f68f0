class Network(nn.Module):
    """tokens [batch, time]; out: logits [batch, time, vocabulary]. `state` of the tokens before, if there were any."""

    def __init__(self, config):
        super().__init__()
        model, vocabulary = config["model"], config["vocabulary"]
        width, hidden, layers = model["d_model"], model["hidden"], model["num_layers"]
        self.drop = nn.Dropout(model["dropout"])
        self.encoder = nn.Embedding(vocabulary, width)
        between = model["dropout"] if layers > 1 else 0.0
        self.rnn = nn.LSTM(width, hidden, layers, dropout=between, batch_first=True)
        self.decoder = nn.Module()
        self.decoder.bias = nn.Parameter(torch.empty(vocabulary))
        if not model["tie_head"]:
            self.decoder.weight = nn.Parameter(torch.empty(vocabulary, hidden))

    def forward(self, tokens, state=None):
        x, self.state = self.rnn(self.drop(self.encoder(tokens)), state)
        weight = getattr(self.decoder, "weight", self.encoder.weight)
        return F.linear(self.drop(x), weight, self.decoder.bias)
