"""Terms of SURE's objective beside the policy gradient: L = -J - lambda1 * sum_i Y_i.

The paper's bound Y holds a KL divergence, a Gaussian term, a cross-entropy and the mutual
information of subgraph and whole graph. What is kept of each, and why, stands at its function [D].
Terms are returned by name, each to be weighed and shown by itself. The paper's cross-entropy is
-log p(g | Omega) of the draw itself, whose gradient is 0 on average; a draw is therefore an action
of the policy, and its log-probability is weighed by the advantage like that of any other [D].
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from loadmaster.envs.errors import InputError
from loadmaster.models.sure.graph import DecisionBatch
from loadmaster.models.sure.network import Evaluation, SureNetwork
from loadmaster.models.sure.sampler import Scores
from loadmaster.models.sure.settings import SureSettings

KL, GAUSSIAN, MUTUAL_INFORMATION = "kl", "gaussian", "mutual_information"
LOG_2 = math.log(2)


def kl_divergence(scores: Scores, prior_variance: float) -> Tensor:
    """KL of Omega's distribution to N(0, s0 I), the mean of each task's entries: (T,).

    The paper's p(Omega | g, S) has no form, so the prior is fixed, as in its code [D].
    1/2 (sigma^2 / s0 + mu^2 / s0 - 1 + log s0 - log sigma^2) of an entry. As a sum it would grow
    with the window and outweigh the policy's gradient [D].
    """
    squares = scores.log_variance.exp() + scores.mean.square()
    of_entry = squares / prior_variance - 1 + math.log(prior_variance) - scores.log_variance
    return _mean(of_entry, scores.in_use) / 2


def half_log_determinant(scores: Scores) -> Tensor:
    """1/2 log|Sigma| of each task's entries, their mean: (T,).

    The quadratic part of the Gaussian term is eps^2 after reparametrisation and has no gradient.
    Minimised, this shrinks the noise of Omega, against the KL [D].
    """
    return _mean(scores.log_variance, scores.in_use) / 2


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    """(T,) means of those entries of (T, L, 2) that count; 0 where none does."""
    total = torch.where(counts, values, 0.0).sum((1, 2))
    return total / counts.sum((1, 2)).clamp(min=1)


def mutual_information(subgraphs: Tensor, wholes: Tensor, decision: Tensor) -> Tensor:
    """Jensen-Shannon bound of I(f(g), f(G)), from 0 for unrelated pairs to 2 log 2.

    E_pos[log 2 - softplus(-T)] - E_neg[softplus(T) - log 2] with T = <f(g_bi), f(G_b')>, positive
    where b = b' (the paper's code counted every pair as positive [D]). `subgraphs` (T, D) belong to
    decisions (T,), `wholes` is (B, D). T is divided by sqrt(D), as in attention.
    """
    if len(wholes) < 2:
        raise InputError(f"mutual information: {len(wholes)} graphs; expected two or more")
    found = subgraphs @ wholes.T / math.sqrt(wholes.shape[1])  # (T, B)
    graphs = torch.arange(len(wholes), device=decision.device)
    positive = decision.unsqueeze(1) == graphs
    of_positive = torch.where(positive, LOG_2 - softplus(-found), 0.0).sum() / len(found)
    negatives = found.numel() - len(found)
    return of_positive - torch.where(positive, 0.0, softplus(found) - LOG_2).sum() / negatives


def objective_terms(
    network: SureNetwork, batch: DecisionBatch, evaluation: Evaluation
) -> dict[str, Tensor]:
    """The terms that the settings have, as means over tasks.

    f(G) is computed for the first decisions of the batch alone, a share that the settings give.
    """
    settings, terms = network.settings, {}
    if evaluation.scores is not None:
        terms[KL] = kl_divergence(evaluation.scores, settings.prior_variance).mean()
        terms[GAUSSIAN] = half_log_determinant(evaluation.scores).mean()
    if settings.draws and settings.mutual_information_weight:
        share = settings.mutual_information_share
        part = network.window(batch).first(max(2, math.ceil(share * len(batch.sizes))))
        wholes = network.embed_whole(network.node_features(part), part)
        subgraphs = evaluation.embedding.tasks[: len(part.tasks)]
        terms[MUTUAL_INFORMATION] = mutual_information(subgraphs, wholes, part.decision)
    return terms


def weighted_losses(terms: dict[str, Tensor], settings: SureSettings) -> dict[str, Tensor]:
    """Each term with its weight, and with the sign of a loss to minimise."""
    weights = {
        KL: settings.kl_weight,
        GAUSSIAN: settings.gaussian_weight,
        MUTUAL_INFORMATION: -settings.mutual_information_weight,
    }
    return {name: weights[name] * term for name, term in terms.items()}
