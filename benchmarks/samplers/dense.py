"""A made-up network in the shape of DenseNet-201: in a block every layer reads all layers before it.

The shape is that of Huang et al., *Densely Connected Convolutional Networks*, 2017: 201 groups and 2,003 edges.
"""

from __future__ import annotations

import numpy as np

from benchmarks.samplers import transformer
from benchmarks.samplers.simulator.problem import Problem
from search.graph.grouping import Edge

LAYERS = (6, 12, 48, 32)  # of each block, two convolutions each
ELEMENTS = 1_000_000


def make(seed: int = 0) -> Problem:
    """The same seed gives the same problem."""
    names, edges, owners = ["/conv0/Conv"], [], [0]
    before = names[0]
    for number, count in enumerate(LAYERS):
        read = [before]
        for layer in range(count):
            narrow, wide = (f"/block{number}/layer{layer}/{part}/Conv" for part in ("conv1", "conv2"))
            edges += [Edge(source, narrow, source, ELEMENTS) for source in read]
            edges.append(Edge(narrow, wide, narrow, ELEMENTS))
            names += [narrow, wide]
            owners += [owners[-1] + 1] * 2
            read.append(wide)
        before = f"/transition{number}/Conv" if number + 1 < len(LAYERS) else "/classifier/Gemm"
        edges += [Edge(source, before, source, ELEMENTS) for source in read]
        names.append(before)
        owners.append(owners[-1] + 1)
    rng = np.random.default_rng([seed, len(names)])
    return transformer.problem_of("dense_201", names, edges, np.array(owners, dtype=np.int64), rng)
