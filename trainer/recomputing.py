"""The logprobs that the engine cannot tell: the policy's own, computed under the version that sampled the tokens.

Under greedy sampling, a grammar, penalties and their like the engine's logprob is that of another distribution, or not
known to be the policy's. The ratio π/μ then begins at 1 for the version that sampled, as it does for all other tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trainer.batches import Batch
from trainer.layouts import layouts, targets
from trainer.policy_model import PolicyModel


def recompute(batch: Batch, model: PolicyModel, version: int, micro_batch_tokens: int) -> Batch:
    """The batch with the logprobs of all tokens that are ``recomputed`` and that ``version`` sampled.

    ``model`` has the weights of that version. Only sequences with such tokens pass it, once, without gradient.
    """
    wanted = [sequence.recomputed & (sequence.version == version) for sequence in batch.sequences]
    members = [number for number, mask in enumerate(wanted) if mask.any()]
    rows = [replace(batch.sequences[m], trained=wanted[m], recomputed=np.zeros_like(wanted[m])) for m in members]
    sequences = list(batch.sequences)
    with torch.no_grad(), model.sharing():
        for layout in layouts(rows, micro_batch_tokens, tree=model.trains_trees):
            found = targets(rows, layout)
            logprobs = model.logprobs(layout, found)[0].float().cpu().numpy()
            for owner, row in enumerate(layout.members):
                member = members[row]
                values = sequences[member].logprobs.copy()
                values[wanted[member]] = np.minimum(logprobs[found.owner == owner], 0)
                sequences[member] = replace(sequences[member], logprobs=values)
    return replace(batch, sequences=tuple(sequences))
