"""Sums of tensors over the learners of several processes, by Gloo or by RLlib's process group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import ray
import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

TIMEOUT = timedelta(seconds=60)  # without a message, after which a peer counts as lost


class PeerError(Exception):
    """A peer died or does not respond."""


class Rendezvous:
    """A key-value store in the first learner's process, by which the others find each other."""

    def __init__(self) -> None:
        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self.address = host, self._store.port


class Peers:
    """A fixed group of learners, created anew whenever a member is replaced.

    An own process group instead of torch's global one: a worker leaves a group whose member died
    and joins the next in the same process.
    """

    def __init__(self, address: tuple[str, int], rank: int, size: int) -> None:
        """Connect to the others; blocks until all have connected."""
        self.rank, self.size = rank, size
        try:
            store = TCPStore(*address, is_master=False, timeout=TIMEOUT)
            gloo: Any = ProcessGroupGloo  # its stubs are incomplete
            options = gloo._Options()
            options._timeout = TIMEOUT
            # The address that Ray uses; by default Gloo would look up the host's name.
            here = ray.util.get_node_ip_address()
            options._devices = [gloo.create_device(hostname=here)]
            self._group = gloo(store, rank, size, options)
        except RuntimeError as fault:
            raise PeerError(str(fault)) from fault

    def add(self, tensor: Tensor) -> None:
        """Replace the tensor by the sum of all members' tensors, the same bits in each of them.

        By recursive doubling: in each round pairs of members exchange their sums, so the sum of W
        members takes log2(W) rounds. Gloo's own all-reduce is a ring of 2 W rounds: with 14
        processes it took 4.6 ms for a network of 5,500 weights.
        """
        power = 1 << (self.size.bit_length() - 1)  # members beyond a power of two have a partner
        partner = self.rank ^ power
        try:
            if self.rank >= power:
                self._group.send([tensor], partner, 0).wait()
                self._group.recv([tensor], partner, 0).wait()
                return
            other = torch.empty_like(tensor)
            if partner < self.size:
                self._group.recv([other], partner, 0).wait()
                tensor += other
            step = 1
            while step < power:
                sent = self._group.send([tensor], self.rank ^ step, 0)
                self._group.recv([other], self.rank ^ step, 0).wait()
                sent.wait()
                tensor += other
                step *= 2
            if partner < self.size:
                self._group.send([tensor], partner, 0).wait()
        except RuntimeError as fault:
            raise PeerError(str(fault)) from fault


class ProcessPeers:
    """The learners that RLlib started, with its process group: NCCL on GPUs, else Gloo."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def add(self, tensor: Tensor) -> None:
        distributed.all_reduce(tensor)
