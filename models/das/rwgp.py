"""The random-walk Gaussian process: affinities that follow the likeness of machines.

The kernel as printed is a constant for any two graphs, because a row-stochastic walk sums to the
same number on all of them. This is its node-level form: the walk's own matrix over the machines,
with ties that depend on the job.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from loadmaster.models.das.affinity import ProcessAffinities
from loadmaster.models.das.cells import Cells, gather_cells
from loadmaster.models.das.history import History
from loadmaster.models.das.kronecker import believe, past_of, spectrum_of
from loadmaster.models.das.settings import DasSettings
from loadmaster.models.das.walk import similarity, topology, walk_kernel

LEAST_TIE = 1e-6  # below it racks are as far apart as can be


class RandomWalkProcess(nn.Module):
    """Prior mean and kinds of machines in, the posterior after the history out."""

    def __init__(self, settings: DasSettings) -> None:
        super().__init__()
        self.settings = settings
        self.log_length = nn.Parameter(torch.tensor(math.log(settings.length)))
        self.log_memory = nn.Parameter(torch.tensor(math.log(settings.memory_s)))
        self.log_noise = nn.Parameter(torch.tensor(math.log(settings.noise)))
        self.log_gain = nn.Parameter(torch.tensor(math.log(settings.gain)))

    def forward(
        self,
        prior: Tensor,
        usual: Tensor,
        log_amplitude: Tensor,
        kinds: Tensor,
        rack: Tensor,
        history: History,
        owner: Tensor,
    ) -> ProcessAffinities:
        """Of N jobs: prior mean (N, M), speeds as they usually are (N, M), (N,), phi (N, M, D),
        (N, M), and which history is whose.

        The posterior mean as the slides' eq. 13 and 14, but for its units. An affinity is no speed,
        and where observations are many the posterior would follow the speeds whatever the actor
        says. So the history speaks of speeds beyond the usual, and `gain` says what they are worth.

        In float64: it costs as much as float32 here, and a log-probability adds up the errors
        of hundreds of machines. The noise is told relative to the amplitude, so that a policy
        that becomes surer of itself does not thereby forget its history.
        """
        memory, noise = self.log_memory.double().exp(), self.log_noise.double().exp()
        past = past_of(history.gap, history.row, memory, noise).take(owner)
        history = history.take(owner)
        prior, usual, kinds = prior.double(), usual.double(), kinds.double()
        length = self.log_length.double().exp()
        cells = self._cells(kinds / length, rack, history)
        share = history.share
        if cells is not None:
            kinds = cells.mean(kinds.mT).mT
            share = cells.mean(share)
        tied = topology(rack, cells, self.settings.same_rack, self.settings.cross_rack)
        ties = tied * similarity(kinds, length)  # A_kl = E_kl exp(-|phi_k - phi_l|^2 / 2l^2)
        kernel = walk_kernel(ties, self.settings.walk, None if cells is None else cells.size)

        surprise = history.speed - usual.unsqueeze(1)  # (N, T, M)
        if cells is None:
            coupled, alone = surprise, None
        else:
            coupled, alone = cells.split(_fill_cells(surprise, history.share, cells))

        # Precisions in coordinates where the prior covariance is I: root' diag(share) root.
        spectrum = spectrum_of(kernel.root.mT @ (share.unsqueeze(-1) * kernel.root))
        told = (coupled * share.unsqueeze(1)) @ kernel.root @ spectrum.vectors
        belief = believe(spectrum.values, spectrum.tilt, told, past)
        turned = spectrum.vectors @ belief.mean.unsqueeze(-1)
        learnt = (kernel.root @ turned).squeeze(-1)
        inside = None
        if cells is not None and alone is not None:
            root = cells.spread(kernel.inside).sqrt()  # (N, M)
            weight = cells.spread(share)
            lone = believe(root.square() * weight, None, alone * (root * weight).unsqueeze(1), past)
            learnt = cells.join(learnt, root * lone.mean)
            inside = root.square() * lone.variance
        return ProcessAffinities(
            mean=prior + self.log_gain.double().exp() * learnt,
            log_amplitude=log_amplitude.double(),
            kernel=kernel,
            spectrum=spectrum,
            variance=belief.variance,
            past=past,
            cells=cells,
            inside=inside,
        )

    def _cells(self, scaled: Tensor, rack: Tensor, history: History) -> Cells | None:
        """Cells of machines whose tie is strong and whose histories weigh alike."""
        if scaled.shape[1] <= self.settings.exact_up_to:
            return None
        told_apart = torch.cat([scaled, history.share.unsqueeze(-1)], dim=-1)
        # -2 log A is a squared distance, of which the racks have this part.
        across = max(self.settings.cross_rack, LEAST_TIE) / max(self.settings.same_rack, LEAST_TIE)
        return gather_cells(told_apart, rack, -2 * math.log(across), self.settings.cells)


def _fill_cells(surprise: Tensor, share: Tensor, cells: Cells) -> Tensor:
    """A machine without observations is told the mean of those in its cell: (N, T, M)."""
    weighted = cells.mean(surprise * share.unsqueeze(1))  # (N, T, C)
    mean = weighted / cells.mean(share).clamp(min=1e-12).unsqueeze(1)
    return torch.where(share.unsqueeze(1) > 0, surprise, cells.spread(mean))
