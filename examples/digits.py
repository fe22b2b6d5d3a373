"""An ordinary PyTorch training loop on the device ``port``.

The network reads 8x8 images of handwritten digits. Nothing in the loop knows about lazy tensors: the operations of a
step are recorded as they are called, the step is launched as one graph when ``optimizer.step()`` returns, and Python
goes on to record the next step while that one runs.

Run:  pip install -e '.[demo]' && python examples/digits.py [device]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import torchport  # registers the device "port" with torch
from torchport.cli.digits import DigitsNetwork, accuracy, load_digits  # an nn.Sequential; two functions on CPU tensors

EPOCHS = 15
BATCH = 32


def main(device: str = "port") -> float:
    """Train on ``device`` and return the share of the test digits that the network gets right."""
    torch.set_num_threads(1)  # the images are so small that more threads would mostly wait for each other
    data = load_digits()
    torch.manual_seed(0)
    network = DigitsNetwork().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(EPOCHS):
        network.train()
        losses = []
        for batch in torch.randperm(len(data.train_images)).split(BATCH):
            images, labels = data.train_images[batch].to(device), data.train_labels[batch].to(device)
            loss = loss_of(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Keep the tensor. loss.item() would wait here, in every step, until its value is there.
            losses.append(loss.detach())
        schedule.step()
        # Reading is what makes Python wait: once an epoch.
        print(f"epoch {epoch + 1:2}  mean loss {torch.stack(losses).mean().item():.4f}")

    network.eval()
    with torch.no_grad():
        predictions = network(data.test_images.to(device)).argmax(dim=1).cpu()
    share = accuracy(predictions, data.test_labels)
    print(f"{share:.1%} of the {len(predictions)} test digits are right")
    return share


if __name__ == "__main__":
    main(*sys.argv[1:2])
    # The learning rate and Adam's step count change in every step, and are inputs of the graph: it was compiled once,
    # not once a step.
    print(f"graphs compiled: {torchport.metrics.counter_value('UncachedCompile')}")
    print(f"graphs run:      {torchport.metrics.counter_value('Execute')}")
