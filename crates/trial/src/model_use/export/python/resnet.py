class Block(nn.Module):
    def __init__(self, plan, epsilon, inputs, outputs, stride):
        super().__init__()
        self.convolutions = len(plan)
        for at, (wide, narrow, kernel, step) in enumerate(plan, 1):
            setattr(self, f"conv{at}", nn.Conv2d(wide, narrow, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{at}", nn.BatchNorm2d(narrow, eps=epsilon))
        self.downsample = None
        if inputs != outputs or stride != 1:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs, eps=epsilon))

    def forward(self, x):
        around = x if self.downsample is None else self.downsample(x)
        for at in range(1, self.convolutions + 1):
            x = getattr(self, f"bn{at}")(getattr(self, f"conv{at}")(x))
            x = F.relu(x if at < self.convolutions else x + around)
        return x


class Network(nn.Module):
    """images [batch, channels, height, width], pixels as fractions of 255 less `normalization.mean` over its `deviation`;
    out: logits [batch, classes]."""

    def __init__(self, config):
        super().__init__()
        width, epsilon, images = config["model"]["width"], config["norm_epsilon"], config["images"]
        self.pools = config["model"]["stem"] == "imagenet"
        kernel, stride = (7, 2) if self.pools else (3, 1)
        self.conv1 = nn.Conv2d(images["channels"], width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=epsilon)
        inputs = width
        for stage, blocks in enumerate(config["blocks"]):
            inner = width << stage
            outputs = inner * (4 if config["bottlenecks"] else 1)
            made = []
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                if config["bottlenecks"]:
                    plan = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
                else:
                    plan = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
                made.append(Block(plan, epsilon, inputs, outputs, stride))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.fc = nn.Linear(inputs, images["classes"])

    def forward(self, images):
        x = F.relu(self.bn1(self.conv1(images)))
        if self.pools:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))
