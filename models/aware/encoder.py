"""The meta-learner's encoder: an embedding of an application from its best trajectories.

A bidirectional recurrent network of two layers reads each trajectory; its last states, through a
layer with ReLU, are the embedding of that trajectory (Qiu et al. 2023, section 4.3). The embedding
of an application is the mean over its trajectories, so their number and lengths may differ. A step
is a vector of any meaning: nothing here is specific to pods.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from loadmaster.models.aware.settings import EncoderSettings

Trajectory = NDArray[np.float32]  # (steps, width)


class TrajectoryEncoder(nn.Module):
    """Embeddings of trajectories and of applications."""

    def __init__(self, settings: EncoderSettings, width: int, embedding: int) -> None:
        super().__init__()
        self.settings, self.embedding = settings, embedding
        last = width
        if settings.kind in ("gru", "lstm"):
            kind = nn.GRU if settings.kind == "gru" else nn.LSTM
            self.recurrent = kind(
                width,
                settings.hidden,
                settings.layers,
                batch_first=True,
                bidirectional=settings.bidirectional,
            )
            last = settings.hidden * (2 if settings.bidirectional else 1)
        self.head = nn.Sequential(nn.Linear(last, settings.hidden), nn.ReLU())
        self.out = nn.Linear(settings.hidden, embedding)

    def forward(self, trajectories: Sequence[Tensor]) -> Tensor:
        """(N, embedding) of N trajectories, each (steps, width)."""
        lengths = torch.tensor([len(each) for each in trajectories])
        if self.settings.kind == "mean":
            read = torch.stack([each.mean(0) for each in trajectories])
        else:
            padded = pad_sequence(list(trajectories), batch_first=True)
            packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
            _, state = self.recurrent(packed)
            hidden = state[0] if self.settings.kind == "lstm" else state
            ways = 2 if self.settings.bidirectional else 1
            read = torch.cat(list(hidden[-ways:]), 1)  # of the last layer, both directions
        found: Tensor = self.out(self.head(read)).relu()
        return found

    def embed(self, applications: Sequence[Sequence[Tensor]]) -> Tensor:
        """(A, embedding) of A applications; one without trajectories has zeros."""
        counts = [len(each) for each in applications]
        if not sum(counts):
            return self.out.weight.new_zeros(len(applications), self.embedding)
        found = self([trajectory for each in applications for trajectory in each])
        parts = torch.split(found, counts)
        return torch.stack([part.mean(0) if len(part) else found.new_zeros(self.embedding)
                            for part in parts])  # fmt: skip
