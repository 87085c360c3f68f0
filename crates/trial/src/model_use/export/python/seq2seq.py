import math


class Rms(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.empty(width)), epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """Scores are not scaled; `bias` is added to them."""

    def __init__(self, model, has_places=False):
        super().__init__()
        inner = model["num_heads"] * model["d_kv"]
        self.heads = model["num_heads"]
        self.q, self.k, self.v = (nn.Linear(model["d_model"], inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, model["d_model"], bias=False)
        if has_places:
            self.relative_attention_bias = nn.Embedding(model["relative_buckets"], model["num_heads"])

    def forward(self, x, y, bias):
        split = lambda x: x.unflatten(2, (self.heads, -1)).transpose(1, 2)
        scores = split(self.q(x)) @ split(self.k(y)).transpose(2, 3) + bias
        return self.o((scores.softmax(-1) @ split(self.v(y))).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, name, part, config):
        super().__init__()
        setattr(self, name, part)
        self.name = name
        self.layer_norm = Rms(config["model"]["d_model"], config["norm_epsilon"])

    def forward(self, x, *rest):
        part, normed = getattr(self, self.name), self.layer_norm(x)
        if self.name == "DenseReluDense":
            return x + part["wo"](F.relu(part["wi"](normed)))
        y, bias = rest
        return x + part(normed, normed if y is None else y, bias)


class Stack(nn.Module):
    def __init__(self, config, layers, is_decoder):
        super().__init__()
        model, self.is_decoder = config["model"], is_decoder
        self.buckets, self.farthest = model["relative_buckets"], model["relative_max_distance"]
        self.block = nn.ModuleList()
        for at in range(layers):
            parts = [Layer("SelfAttention", Attention(model, at == 0), config)]
            if is_decoder:
                parts.append(Layer("EncDecAttention", Attention(model), config))
            dense = {"wi": nn.Linear(model["d_model"], model["d_ff"], bias=False)}
            dense["wo"] = nn.Linear(model["d_ff"], model["d_model"], bias=False)
            parts.append(Layer("DenseReluDense", nn.ModuleDict(dense), config))
            self.block.append(nn.ModuleDict({"layer": nn.ModuleList(parts)}))
        self.final_layer_norm = Rms(model["d_model"], config["norm_epsilon"])

    def places(self, time, device):
        """The learned bias [1, heads, time, time] by how far a token is from the one that looks."""
        at = torch.arange(time, device=device)
        distance, buckets, first = at[None, :] - at[:, None], self.buckets, 0
        if self.is_decoder:
            distance = (-distance).clamp(min=0)
        else:
            buckets //= 2
            first, distance = (distance > 0).long() * buckets, distance.abs()
        exact = buckets // 2
        far = torch.log(distance.float().clamp(min=1) / exact) / math.log(self.farthest / exact) * (buckets - exact)
        far = (exact + far.long()).clamp(max=buckets - 1)
        table = self.block[0]["layer"][0].SelfAttention.relative_attention_bias
        return table(first + torch.where(distance < exact, distance, far)).permute(2, 0, 1)[None]

    def forward(self, x, mask, y=None, of_y=None):
        own = self.places(x.shape[1], x.device) + mask
        for block in self.block:
            layers = block["layer"]
            x = layers[0](x, None, own)
            if self.is_decoder:
                x = layers[1](x, y, of_y)
            x = layers[-1](x)
        return self.final_layer_norm(x)


class Network(nn.Module):
    """prompts [batch, prompt_len], of which prompt_lengths [batch] tokens count, and decoder_inputs [batch, response_len]: the
    response one place on, after the pad token; out: logits [batch, response_len, vocabulary]. Without dropout."""

    def __init__(self, config):
        super().__init__()
        model = config["model"]
        self.shared = nn.Embedding(config["vocabulary"], model["d_model"])
        self.encoder = Stack(config, model["encoder_layers"], False)
        self.decoder = Stack(config, model["decoder_layers"], True)

    def forward(self, prompts, prompt_lengths, decoder_inputs):
        hidden = lambda mask: torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -math.inf)
        places = torch.arange(prompts.shape[1], device=prompts.device)
        padding = hidden(places[None, :] >= prompt_lengths[:, None])[:, None, None, :]
        after = torch.ones(decoder_inputs.shape[1], decoder_inputs.shape[1], device=prompts.device, dtype=torch.bool)
        prompts = self.encoder(self.shared(prompts), padding)
        x = self.decoder(self.shared(decoder_inputs), hidden(after.triu(1)), prompts, padding)
        return F.linear(x / math.sqrt(x.shape[-1]), self.shared.weight)
