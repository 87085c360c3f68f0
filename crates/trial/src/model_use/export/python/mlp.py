class Network(nn.Module):
    """tokens [batch, time]; out: logits [batch, time, vocabulary], each from the last `context` tokens."""

    def __init__(self, config):
        super().__init__()
        model, vocabulary = config["model"], config["vocabulary"]
        self.context = model["context"]
        self.embedding = nn.Embedding(vocabulary, model["d_model"])
        self.hidden = nn.Linear(self.context * model["d_model"], model["hidden"])
        self.output = nn.Linear(model["hidden"], vocabulary)

    def forward(self, tokens):
        time = tokens.shape[1]
        padded = F.pad(self.embedding(tokens), (0, 0, self.context - 1, 0))
        seen = torch.cat([padded[:, at : at + time] for at in range(self.context)], dim=2)
        return self.output(F.gelu(self.hidden(seen)))
