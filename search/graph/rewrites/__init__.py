"""Exact rewrites of a clean graph: fewer ops for the same numbers, in every precision.

Exporters leave factors and offsets beside a layer, and activations written out op by op. An engine that cannot fold
them runs each as a pass over memory, and between two INT8 layers each is a detour through floats. What is rewritten
stays within float32 rounding, and a layer keeps its name. PP-OCRv4's recognizer has 222 nodes then instead of 424,
and its detector 165 instead of 289; the rules of onnxscript 0.7 for this (`conv_affine_fusion_rule` and the like)
change neither, because they want a bias, a factor and an offset at once, and the last of one reader.

A rewrite is a function of a graph and its opset. It changes the graph in place and says whether it did. `REWRITES`, and
those that other packages register by the group of entry points `bitfront.rewrites`, are applied in turn until none
changes anything.
"""
