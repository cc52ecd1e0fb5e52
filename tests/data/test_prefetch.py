"""Pooled buffers are reused, but never while they are referenced."""

import threading

import torch

from tercet.data.feature_array import MAX_BUFFERS, BufferPool


def test_a_buffer_is_reused_only_when_no_view_references_it():
    buffers = BufferPool()
    first = buffers.borrow((4, 5), torch.float32)
    address = first.data_ptr()
    assert buffers.borrow((4, 5), torch.float32).data_ptr() != address
    view = first[1:].T
    del first
    assert buffers.borrow((4, 5), torch.float32).data_ptr() != address
    del view
    assert buffers.borrow((5, 4), torch.float32).data_ptr() == address


def test_buffers_saved_for_backward_are_not_reused():
    buffers = BufferPool()
    weight = torch.ones(4, requires_grad=True)
    features = buffers.borrow((4,), torch.float32).fill_(3.0)
    loss = (weight * features).sum()
    del features
    buffers.borrow((4,), torch.float32).fill_(-1.0)
    loss.backward()
    assert weight.grad.tolist() == [3.0] * 4


def test_numpy_views_are_references_too():
    buffers = BufferPool()
    array = buffers.borrow((4,), torch.float32).fill_(7.0).numpy()
    buffers.borrow((4,), torch.float32).fill_(0.0)
    assert array.tolist() == [7.0] * 4


def test_the_pool_keeps_a_limited_number_of_buffers():
    buffers = BufferPool()
    held = [buffers.borrow((8,), torch.float64) for _ in range(20)]
    assert len({tensor.data_ptr() for tensor in held}) == 20
    assert len(buffers._arrays) <= MAX_BUFFERS


def test_threads_never_share_a_buffer():
    buffers, wrong = BufferPool(), []

    def work(number: int) -> None:
        for _ in range(300):
            mine = buffers.borrow((64,), torch.float32).fill_(number)
            if not (mine == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
