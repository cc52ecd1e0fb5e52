"""Lent memory serves again, but never while anybody holds it."""

import threading

import torch

from tercet.data.buffers import KEPT, Buffers


def test_memory_serves_again_only_when_nobody_holds_any_view_of_it():
    buffers = Buffers()
    first = buffers.lend((4, 5), torch.float32)
    place = first.data_ptr()
    assert buffers.lend((4, 5), torch.float32).data_ptr() != place
    view = first[1:].T
    del first
    assert buffers.lend((4, 5), torch.float32).data_ptr() != place
    del view
    assert buffers.lend((5, 4), torch.float32).data_ptr() == place


def test_what_autograd_keeps_for_backward_is_not_lent_again():
    buffers = Buffers()
    weight = torch.ones(4, requires_grad=True)
    features = buffers.lend((4,), torch.float32).fill_(3.0)
    loss = (weight * features).sum()
    del features
    buffers.lend((4,), torch.float32).fill_(-1.0)
    loss.backward()
    assert weight.grad.tolist() == [3.0] * 4


def test_numpy_views_count_too():
    buffers = Buffers()
    array = buffers.lend((4,), torch.float32).fill_(7.0).numpy()
    buffers.lend((4,), torch.float32).fill_(0.0)
    assert array.tolist() == [7.0] * 4


def test_no_more_than_a_few_are_kept():
    buffers = Buffers()
    held = [buffers.lend((8,), torch.float64) for _ in range(20)]
    assert len({tensor.data_ptr() for tensor in held}) == 20
    assert len(buffers._arrays) <= KEPT


def test_threads_never_get_the_same_memory():
    buffers, wrong = Buffers(), []

    def work(number: int) -> None:
        for _ in range(300):
            mine = buffers.lend((64,), torch.float32).fill_(number)
            if not (mine == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
