HERE = Path(__file__).parent


def load(folder=HERE):
    """The trained network, in evaluation mode."""
    network = Network(json.loads((Path(folder) / "config.json").read_text()))
    network.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    return network.eval()


if __name__ == "__main__":
    inputs = load_file(HERE / "check.safetensors")
    expected = inputs.pop("outputs")
    with torch.no_grad():
        found = load()(**inputs).reshape(expected.shape)
    difference = (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    print(f"largest difference from kiln's outputs: {difference:.1e}")
    # Written so that NaN fails.
    sys.exit(not difference <= 1e-5)
