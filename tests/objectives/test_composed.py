"""Sums of objectives: scalar, gradient and monitor are those of the terms, on every path; their text is read again."""

import pytest
import torch

import tercet
from tercet.analysis.triplet_diagram import gradient_at, plane
from tercet.names import split_terms
from tercet.objectives import Composed
from tercet.objectives.registry import spec_of
from tests.objectives.batches import CASES

CASE = CASES["house 3 x 15, ignored pairs"]
SUMS = {
    "nt-xent + 0.1*cir/sig-ms": [(1, "nt-xent", {}), (0.1, "cir/sig-ms", {})],
    "0.5*triplet:margin=0.3 + 2e-3*smooth-ap": [(0.5, "triplet", {"margin": 0.3}), (0.002, "smooth-ap", {})],
    "0.25*con/sig:reading=code,reduction=mean": [(0.25, "con/sig", {"reading": "code", "reduction": "mean"})],
    "sigmoid + triplet-sh + nt-xent": [(1, "sigmoid", {}), (1, "triplet-sh", {}), (1, "nt-xent", {})],
}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", SUMS)
def test_gradients_and_value_are_weighted_sums(text):
    o, terms = tercet.objective(text), [(w, tercet.objective(name, **settings)) for w, name, settings in SUMS[text]]
    for which in (0, 1):
        close(o.pair_gradients(*CASE)[which], sum(w * term.pair_gradients(*CASE)[which] for w, term in terms))
    leaf = CASE.similarity.clone().requires_grad_()
    scalar = o.on_similarity(leaf, *CASE[1:])
    scalar.backward()
    close(leaf.grad, o.pair_gradient(*CASE))
    assert o.has_value == all(term.has_value for _, term in terms)
    if o.has_value:
        close(o.value(*CASE), sum(w * term.value(*CASE) for w, term in terms))
        close(scalar, o.value(*CASE))
    else:
        assert o.value(*CASE) is None
        close(scalar, o.monitor(*CASE))


@pytest.mark.parametrize("text", SUMS)
def test_the_text_is_read_again_and_equals_the_sum_of_objects(text):
    o = tercet.objective(text)
    assert tercet.objective(o.name) == o
    assert tercet.objective(spec_of(o)) == o
    (first, *others) = [w * tercet.objective(name, **settings) for w, name, settings in SUMS[text]]
    for other in others:
        first = first + other
    assert first == o
    assert tercet.objective(o) == o


def test_weights_multiply_and_terms_join():
    a, b = tercet.objective("nt-xent"), tercet.objective("triplet")
    assert 2 * (a + 0.1 * b) == Composed(((2.0, a), (0.2, b)))
    assert repr(a + 0.1 * b) == "tercet.objective('nt-xent') + 0.1 * tercet.objective('triplet')"
    assert (a + 0.1 * b).name == "nt-xent + 0.1*triplet"
    assert sum([b, a], start=0.5 * a).name == "0.5*nt-xent + triplet + nt-xent"


@pytest.mark.parametrize("text", ["nt-xent + 0.1*cir/sig-ms", "nt-xent + 0.5*circle:detach_weights=false"])
def test_every_path_delivers_the_gradient(text):
    assert tercet.check_objective(text, processes=False)


@pytest.mark.slow
def test_two_processes_deliver_the_gradient():
    assert tercet.check_objective("nt-xent + 0.1*cir/sig-ms")
    assert tercet.check_objective("nt-xent:learn=temperature")


def test_a_function_may_be_a_term():
    def pull(similarity, positives, strength=2.0):
        return -strength * positives.to(similarity.dtype)

    def loss(similarity, positives):
        return similarity[~positives].square().mean()

    base = tercet.objective("nt-xent")
    plain = CASES["house 3 x 15"]
    for function in (pull, loss):
        o = base + 0.1 * tercet.objective(function)
        expected = base.pair_gradient(*plain) + 0.1 * tercet.objective(function).pair_gradient(*plain)
        close(o.pair_gradient(*plain), expected)
        leaf = plain.similarity.clone().requires_grad_()
        o.on_similarity(leaf, plain.positives).backward()
        close(leaf.grad, expected)
        assert tercet.objective(spec_of(o)) == o


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tercet.objective("nt-xent + 0.1*nt-xnet"), "did you mean nt-xent"),
        (lambda: tercet.objective("nt-xent + 0*triplet"), r"weight of triplet .* positive number, got 0\.0"),
        (lambda: -1 * tercet.objective("triplet"), "weight of triplet .* got -1"),
        (lambda: tercet.objective("nt-xent + aoq"), "aoq cannot be a term of a sum"),
        (lambda: tercet.objective("nt-xent + triplet", margin=0.3), "no setting 'margin': write settings behind"),
        (lambda: tercet.objective("nt-xent + mine.py:f"), "in that file"),
        (lambda: tercet.objective("nt-xent + 0.1 triplet"), "expected terms like 0.1"),
        (lambda: tercet.objective("nt-xent + triplet").on_similarity(CASE[0], CASE[1].double() * 2), r"in 0\.\.1"),
        (lambda: plane(tercet.objective("nt-xent + triplet")), "different reductions"),
        (lambda: tercet.objective("nt-xent + triplet")(*torch.eye(2)[None].expand(2, 2, 2), scale=2.0), "temperature"),
    ],
)
def test_mistakes_are_told_in_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_diagram_is_the_sum_of_diagrams():
    o = tercet.objective("triplet-sh + 0.5*cir/sig-ms")
    s_p, s_n = torch.rand(2, 9, dtype=torch.float64).unbind()
    parts = [gradient_at(tercet.objective(name), s_p, s_n) for name in ("triplet-sh", "cir/sig-ms")]
    for whole, first, second in zip(gradient_at(o, s_p, s_n), *parts, strict=True):
        close(whole, first + 0.5 * second)


def test_a_name_with_a_colon_or_plus_is_no_sum():
    assert split_terms("cir+sig-ms") == [(1.0, "cir+sig-ms")]
    assert tercet.objective("cir+sig-ms").name == "cir/sig-ms"
