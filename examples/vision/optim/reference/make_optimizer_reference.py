#!/usr/bin/env python3
"""Makes optimizer_reference.json: weights after steps of LARS and LAMB, computed from the papers.

Written after algorithm 1 of arXiv 1708.03888 and algorithm 2 of arXiv 1904.00962 with tensors of
Python's torch in double precision, without the C++ sources. Runs on Debian's python3-torch:

    examples/vision/optim/reference/make_optimizer_reference.py \\
        > examples/vision/optim/reference/optimizer_reference.json

Layer k's weight and its gradient in step t are drawn here and written down with the results. The
last layer is in a group of its own, neither decayed nor adapted; the gradients of layer 1 are zero
in step 2, and layer 2 begins with weights of zero, whose norms have no ratio.
"""
import json

import torch

STEPS = 5
SHAPES = [(3, 2, 2, 2), (4, 3), (2, 5), (4,)]


def lars(weights, gradients, rate, momentum, decay, trust, adapt):
    """Changes `weights` by a step for each list of gradients."""
    velocity = [torch.zeros_like(w) for w in weights]
    for of_step in gradients:
        for k, (w, g) in enumerate(zip(weights, of_step)):
            beta = decay if adapt[k] else 0.0
            local = 1.0
            if adapt[k] and w.norm() > 0 and g.norm() > 0:
                local = trust * w.norm() / (g.norm() + beta * w.norm())
            velocity[k] = momentum * velocity[k] + rate * local * (g + beta * w)
            w -= velocity[k]


def lamb(weights, gradients, rate, beta1, beta2, eps, decay, adapt):
    first = [torch.zeros_like(w) for w in weights]
    second = [torch.zeros_like(w) for w in weights]
    for t, of_step in enumerate(gradients, start=1):
        for k, (w, g) in enumerate(zip(weights, of_step)):
            first[k] = beta1 * first[k] + (1 - beta1) * g
            second[k] = beta2 * second[k] + (1 - beta2) * g * g
            r = first[k] / (1 - beta1**t) / ((second[k] / (1 - beta2**t)).sqrt() + eps)
            update = r + (decay if adapt[k] else 0.0) * w
            ratio = 1.0
            if adapt[k] and w.norm() > 0 and update.norm() > 0:
                ratio = w.norm() / update.norm()
            w -= rate * ratio * update


def main():
    torch.manual_seed(7)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    weights[2].zero_()
    gradients = [[torch.randn(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(STEPS)]
    gradients[2][1].zero_()
    adapt = [True, True, True, False]

    def after(optimizer, **options):
        moved = [w.clone() for w in weights]
        optimizer(moved, gradients, adapt=adapt, **options)
        return {"options": options, "weights": [w.flatten().tolist() for w in moved]}

    print(json.dumps({
        "shapes": SHAPES,
        "adapt": adapt,
        "weights": [w.flatten().tolist() for w in weights],
        "gradients": [[g.flatten().tolist() for g in of_step] for of_step in gradients],
        "lars": after(lars, rate=2.0, momentum=0.9, decay=0.01, trust=0.02),
        "lamb": after(lamb, rate=0.05, beta1=0.9, beta2=0.99, eps=1e-6, decay=0.1),
    }))


if __name__ == "__main__":
    main()
