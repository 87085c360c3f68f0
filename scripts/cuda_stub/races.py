"""A host that touches page-locked memory too early, and one that waits first, in PyTorch on the stub.

`races.py NAME waits`, or another word for one that does not, prints what is found at the end."""

import sys

import torch


def there(wait):
    """Values that go to the device, while the host writes others."""
    values = torch.ones(100, pin_memory=True)
    copied = values.to("cuda", non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    values.fill_(5)
    return copied.cpu()


def back(wait):
    """Values that come to the host."""
    values = torch.zeros(100, pin_memory=True)
    values.copy_(torch.ones(100).cuda(), non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    assert not done.query()
    if wait:
        done.synchronize()
    return values


def back_on_another_stream(wait):
    values, other = torch.zeros(100, pin_memory=True), torch.cuda.Stream()
    ones = torch.ones(100).cuda()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        values.copy_(ones, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(other)
    torch.cuda.current_stream().synchronize()
    return values


print({"there": there, "back": back, "back_on_another_stream": back_on_another_stream}[sys.argv[1]](sys.argv[2] == "waits")[7].item())
