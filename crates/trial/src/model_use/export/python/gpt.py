class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        model, epsilon = config["model"], config["norm_epsilon"]
        width, bias, self.heads, self.dropout = model["d_model"], model["bias"], model["num_heads"], model["dropout"]
        self.ln_1 = nn.LayerNorm(width, eps=epsilon, bias=bias)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width, bias), "c_proj": nn.Linear(width, width, bias)})
        self.ln_2 = nn.LayerNorm(width, eps=epsilon, bias=bias)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width, bias), "c_proj": nn.Linear(4 * width, width, bias)})

    def forward(self, x):
        batch, time, width = x.shape
        dropout = self.dropout if self.training else 0.0
        parts = self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, time, width)
        x = x + F.dropout(self.attn["c_proj"](mixed), dropout)
        return x + F.dropout(self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)))), dropout)


class Network(nn.Module):
    """tokens [batch, time], time at most seq_len; out: logits [batch, time, vocabulary]."""

    def __init__(self, config):
        super().__init__()
        model = config["model"]
        width, vocabulary, self.dropout = model["d_model"], config["vocabulary"], model["dropout"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(model["seq_len"], width),
            "h": nn.ModuleList(Block(config) for _ in range(model["num_layers"])),
            "ln_f": nn.LayerNorm(width, eps=config["norm_epsilon"], bias=model["bias"]),
        })
        self.lm_head = None if model["tie_head"] else nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](places)
        x = F.dropout(x, self.dropout, self.training)
        for block in self.transformer["h"]:
            x = block(x)
        head = self.transformer["wte"] if self.lm_head is None else self.lm_head
        return F.linear(self.transformer["ln_f"](x), head.weight)
