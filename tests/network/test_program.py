"""Programs: values of random networks, and what callers may do with them."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.engines.jit.test_pool_processes import forks, passes
from upconv import memory
from upconv.engine_choice import Algorithm
from upconv.errors import ArgumentError, DTypeError, EngineError, MemoryLimitError, ShapeError
from upconv.network import Network
from upconv.network.compile import Compiler
from upconv.network.definitions import evaluate
from upconv.network.graph import Graph, Options
from upconv.network.program import Program
from upconv.problem import DType


def program_of(graph: Graph, threads: int = 2, algorithm: Algorithm = Algorithm.AUTO) -> Program:
    compiler = Compiler(graph)
    shapes = {name: graph.shapes[value] for name, value in graph.inputs.items()}

    options = Options(DType.FLOAT32, threads, algorithm)
    return Program(lambda chosen: compiler.compiled(shapes, chosen), options)


def test_a_layer_that_no_kernel_computes_is_named_with_its_line() -> None:
    network = Network({"x": (1, 1, 70_000)})
    y = network.conv(network.inputs["x"], np.ones((1, 1, (1 << 16) + 1)))  # the line that is named
    network.output(y)
    with pytest.raises(EngineError) as raised:
        network.compile()
    message = str(raised.value)
    assert message.startswith(f"conv at {__file__}:")
    assert ", weight (1, 1, 65537): A network cannot compute" in message
    assert "taps along the last axis" in message
    assert message.endswith("Run the network on smaller inputs, or end it before this layer.")


def decoder(size: int = 300, outputs: int = 2) -> Network:
    """Layers that read what others wrote long before; random weights."""
    rng = np.random.default_rng(1)
    network = Network({"x": (1, 8, size)})
    x = network.inputs["x"]
    head = network.conv(x, rng.standard_normal((16, 8, 7)) / 7, padding=3, activation="relu")
    body = network.conv(head, rng.standard_normal((16, 16, 3)) / 7, padding=1, activation="relu")
    body = network.conv(body, rng.standard_normal((16, 16, 3)) / 7, padding=1)
    up = network.conv_transpose(body, rng.standard_normal((16, 8, 4)) / 8, stride=2, padding=1)
    network.output(*(up, head)[:outputs])
    return network


def x_of(size: int = 300, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 8, size)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("part", ["concat", "slice"])
def test_a_sum_with_a_part_of_another_array(part: str, batch: int) -> None:
    """A kernel steps from image to image alike in its result and in what it adds."""
    draw = np.random.default_rng(1).standard_normal
    network = Network({"x": (batch, 8, 12)})
    x = network.inputs["x"]
    head = network.conv(x, draw((16, 8, 3)), padding=1, activation="tanh")
    tail = network.conv(x, draw((16, 8, 3)), padding=1, activation="tanh")
    if part == "concat":
        y, added = network.concat(head, tail), head
    else:
        y, added = network.slice(head, 0, 8), network.slice(head, 8, 16)
    network.output(network.conv(y, draw((added.channels, y.channels, 3)), padding=1) + added)
    array = draw((batch, 8, 12)).astype(np.float32)
    (expected,) = evaluate(network.graph(), [array])
    np.testing.assert_allclose(network(array), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_sum_with_a_crop_that_lies_in_the_result(batch: int) -> None:
    """A crop of more positions than channels was cut short where channels come last."""
    draw = np.random.default_rng(1).standard_normal
    network = Network({"x": (batch, 32, 60)})
    x = network.inputs["x"]
    second, third = (
        network.conv(x, draw((32, 32, 3)), padding=padding, activation="relu")
        for padding in (((3, 1),), ((1, 3),))
    )
    crops = network.crop(second, ((2, 0),)), network.crop(third, ((0, 2),))
    first = network.conv(x, draw((32, 32, 3)), padding=1)
    network.output(network.conv(first + crops[0] + crops[1], draw((32, 32, 1))))
    array = draw((batch, 32, 60)).astype(np.float32)
    (expected,) = evaluate(network.graph(), [array.astype(np.float64)])
    np.testing.assert_allclose(network(array), expected, rtol=1e-4, atol=1e-2)


def test_out_is_written_and_returned() -> None:
    program, x = program_of(decoder().graph()), x_of()
    expected = program(x)
    out = [np.full(shape, np.nan, np.float32) for shape in program.output_shapes]
    assert program(x, out=out) is out
    for array, value in zip(out, expected, strict=True):
        assert array.tobytes() == value.tobytes()
    single = program_of(decoder(outputs=1).graph())
    wide = np.zeros((1, 8, 1200), np.float32)[..., ::2]
    assert single(x, out=wide) is wide
    np.testing.assert_array_equal(wide, expected[0])


def test_results_of_earlier_calls_stay() -> None:
    program = program_of(decoder().graph())
    first = program(x_of(seed=1))
    kept = [array.copy() for array in first]
    program(x_of(seed=2))
    for array, value in zip(first, kept, strict=True):
        assert array.tobytes() == value.tobytes()


def test_out_may_be_the_input() -> None:
    network = Network({"x": (1, 8, 300)})
    network.output(network.conv(network.inputs["x"], np.ones((8, 8, 3)), padding=1))
    program, x = program_of(network.graph()), x_of()
    expected = program(x)
    assert program(x, out=x) is x
    assert x.tobytes() == expected.tobytes()


def test_arrays_of_callers_anywhere() -> None:
    """In place, with gaps, between lines of the cache, aligned to no element, over each other."""
    program, x = program_of(decoder().graph()), x_of()
    expected = [array.tobytes() for array in program(x)]
    shapes = program.output_shapes

    def moved(nbytes: int, shape: tuple[int, ...]) -> np.ndarray:
        room = np.empty(4 * int(np.prod(shape)) + nbytes, np.uint8)
        return room[nbytes:].view(np.float32).reshape(shape)

    wide = np.zeros((1, 8, 600), np.float32)[..., ::2]
    for array in (wide, moved(4, x.shape), moved(1, x.shape), np.asfortranarray(x)):
        array[...] = x
        array.flags.writeable = False
        assert [result.tobytes() for result in program(array)] == expected
    for nbytes in (1, 4, 60):
        out = [moved(nbytes, shape) for shape in shapes]
        program(x, out=out)
        assert [result.tobytes() for result in out] == expected
    room = np.empty(sum(int(np.prod(shape)) for shape in shapes), np.float32)
    both = [room[: int(np.prod(shape))].reshape(shape) for shape in shapes]
    program(x, out=both)  # the later one stays
    assert both[1].tobytes() == expected[1]


def test_an_input_is_only_read_where_nothing_else_reads_it() -> None:
    """A chain does not take the place of the caller's array; an output may be read again."""
    network = Network({"x": (2, 8, 300)})
    y = network.activation(network.inputs["x"], "tanh")
    z = network.conv(y, np.ones((8, 8, 3)), padding=1, activation="relu")
    network.output(y, network.activation(z, "silu"), z, network.inputs["x"])
    program = program_of(network.graph())
    x = np.random.default_rng(0).standard_normal((2, 8, 300)).astype(np.float32)
    before = x.copy()
    for result, value in zip(program(x), evaluate(network.graph(), [x]), strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-5, atol=1e-5)
    assert x.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("arrays", "out", "error", "words"),
    [
        ([], None, ArgumentError, "the number of arrays is 0; expected 1: x"),
        ([x_of(), x_of()], None, ArgumentError, "the number of arrays is 2; expected 1: x"),
        ([x_of(301)], None, ShapeError, r"x.shape is \(1, 8, 301\); expected \(1, 8, 300\), as"),
        ([x_of().astype(np.float64)], None, DTypeError, "x.dtype is float64; expected float32"),
        ([[1, 2]], None, DTypeError, r"x is \[1, 2\] \(list\); expected an array"),
        ([x_of()], [], ArgumentError, "out is 0 arrays; expected 2, one per output"),
        ([x_of()], x_of(), ArgumentError, "out is 1 array; expected 2"),
        ([x_of()], 3, DTypeError, "out is of type int; expected an array, or a sequence with one"),
        ([x_of()], [x_of(), x_of()], ShapeError, "out.shape is"),
    ],
)
def test_bad_arguments(arrays: Any, out: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        program_of(decoder().graph())(*arrays, out=out)


@pytest.mark.parametrize("special", [np.inf, np.nan, 3e38])
def test_sums_that_overflow_are_computed_directly(special: float) -> None:
    """Where Winograd's sums are not finite, results are those of direct sums."""
    rng = np.random.default_rng(0)
    network = Network({"x": (1, 32, 400)})
    y = network.conv(network.inputs["x"], rng.standard_normal((32, 32, 7)) / 15, padding=3)
    network.output(network.conv(y, rng.standard_normal((8, 32, 3)) / 10, padding=1))
    graph = network.graph()
    program = program_of(graph, algorithm=Algorithm.WINOGRAD)
    direct = program_of(graph, algorithm=Algorithm.DIRECT)
    x = rng.standard_normal((1, 32, 400)).astype(np.float32)
    assert np.isfinite(program(x)).all()
    x[0, 3, 64:80:4], x[0, 3, 66:80:4] = special, -special  # any tile adds or subtracts two
    assert program(x).tobytes() == direct(x).tobytes()
    x[0, 3, 64:80] = 0
    assert np.isfinite(program(x)).all()


def test_inputs_that_are_not_finite_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is fed with them, only the first call is in vain."""
    network = Network({"x": (1, 64, 2000)})
    weight = np.random.default_rng(0).standard_normal((64, 64, 7)) / 21
    network.output(network.conv(network.inputs["x"], weight, padding=3))
    program = program_of(network.graph(), algorithm=Algorithm.WINOGRAD)
    direct = program_of(network.graph(), algorithm=Algorithm.DIRECT)
    runs: list[Program] = []
    once = Program._run_once
    monkeypatch.setattr(Program, "_run_once", lambda self, *a: runs.append(self) or once(self, *a))
    assert "winograd" in program.explain(measure=False)
    x = np.random.default_rng(1).standard_normal((1, 64, 2000)).astype(np.float32)
    finite = program(x)
    bad = x.copy()
    bad[0, 5, 100] = np.nan
    expected = direct(bad).tobytes()
    runs.clear()
    for _ in range(3):
        assert program(bad).tobytes() == expected
    assert [each is program for each in runs] == [True, False, False, False]
    assert program(x).tobytes() == finite.tobytes()
    assert runs[-1] is program


def test_many_threads_run_one_program() -> None:
    program = program_of(decoder().graph())
    expected = [program(x_of(seed=seed)) for seed in range(6)]

    def call(seed: int) -> None:
        for _ in range(20):
            for array, value in zip(program(x_of(seed=seed)), expected[seed], strict=True):
                assert array.tobytes() == value.tobytes()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(6)))
    assert len(program._free) <= 2, "arenas that no call needs are given back"


def test_programs_of_a_network_share_memory() -> None:
    """One buffer for all lengths while one call runs; each running call has one of its own."""
    network = open_network()
    sizes = range(100, 120)
    programs = {size: network.program({"x": (1, 8, size)}, threads=1) for size in sizes}
    expected = {size: program(x_of(size)) for size, program in programs.items()}
    buffers = {id(each.buffer) for program in programs.values() for each in program._free}
    assert len(buffers) <= 2, "the first size's, and a larger one"

    def call(size: int) -> None:
        for _ in range(20):
            result = programs[size](x_of(size))
            assert all(np.array_equal(a, b) for a, b in zip(result, expected[size], strict=True))

    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(call, sizes[::3]))


def test_a_closed_program_says_so() -> None:
    with program_of(decoder().graph()) as program:
        program(x_of())
    with pytest.raises(EngineError, match=r"This program is closed. Compile the network again."):
        program(x_of())
    assert "closed" in repr(program)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_program_cannot_be_pickled(copied: Any) -> None:
    with pytest.raises(EngineError, match="Pickle the network, and compile it after"):
        copied(program_of(decoder().graph()))


def test_an_arena_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = decoder(3_000_000, outputs=1).graph()
    assert program_of(graph).memory_bytes > memory.ALWAYS_FINE
    monkeypatch.setattr(memory, "available_bytes", lambda: 100 << 20)
    with pytest.raises(MemoryLimitError, match=r"the arena of the program needs .* MiB"):
        program_of(graph)


def test_memory_is_less_than_that_of_all_values() -> None:
    graph = decoder().graph()
    values = sum(int(np.prod(shape)) * 4 for shape in graph.shapes.values())
    assert program_of(graph, algorithm=Algorithm.DIRECT)._arena.nbytes < values


def open_network() -> Network:
    """A network whose length is open."""
    rng = np.random.default_rng(1)
    network = Network({"x": (1, 8, None)})
    y = network.conv(network.inputs["x"], rng.standard_normal((16, 8, 7)) / 7, padding=3)
    network.output(network.conv_transpose(y, rng.standard_normal((16, 8, 4)) / 8, stride=2))
    return network


def test_sizes_of_which_no_arena_fits_are_refused_before_tables_are_made() -> None:
    network = open_network()
    for size in (2**29, 2**33, 2**47):
        start = time.thread_time()
        with pytest.raises((MemoryLimitError, EngineError), match=r"arena|tables"):
            network.compile({"x": (1, 8, size)})
        assert time.thread_time() - start < 5


def test_programs_of_many_lengths_are_bounded() -> None:
    network = open_network()
    for size in range(70, 130):
        x = x_of(size)
        np.testing.assert_allclose(
            network(x), evaluate(network.graph(x=x.shape), [x])[0], rtol=0, atol=1e-5
        )
    assert network._programs is not None
    assert len(network._programs._programs) <= 32


def test_closing_while_others_run() -> None:
    """A call ends with a result or says that the program is closed; no arena is kept."""
    for _ in range(5):
        program = program_of(decoder().graph())
        expected = [array.tobytes() for array in program(x_of())]

        def call(program: Program = program, expected: Any = expected) -> None:
            while True:
                assert [array.tobytes() for array in program(x_of())] == expected

        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(call) for _ in range(3)]
            time.sleep(0.02)
            program.close()
        errors = [(type(each.exception()), str(each.exception())) for each in calls]
        closed = "This program is closed. Compile the network again."
        assert errors == [(EngineError, closed)] * 3
        assert not program._free


@forks
def test_interrupts_and_forks_while_others_run() -> None:
    body = """
def works(runs=30):
    for _ in range(runs):
        for array, value in zip(program(x), expected):
            assert array.tobytes() == value.tobytes()
def interrupt(*_): raise KeyboardInterrupt
threads = [threading.Thread(target=works, args=(300,)) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(3): child(works)
signal.signal(signal.SIGALRM, interrupt)
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        while True: program(x)
    except KeyboardInterrupt:
        works(1)
for thread in threads: thread.join()
"""
    prelude = """
from tests.network.test_program import decoder, program_of, x_of
program, x = program_of(decoder().graph(), 3), x_of()
expected = program(x)
"""
    passes(body, prelude=prelude)


def test_borrowed_threads(two_torch_threads) -> None:
    torch, program, x = two_torch_threads, program_of(decoder().graph(), 4), x_of()
    expected = [array.tobytes() for array in program(x)]
    for count in (2, 5):
        torch.set_num_threads(count)
        for _ in range(10):
            assert torch.ones(1 << 18).sum() == 1 << 18
            assert [array.tobytes() for array in program(x)] == expected


def test_a_kept_program_tells_its_shapes_and_is_the_one_that_a_call_runs() -> None:
    network, x = decoder(), x_of()
    program = network.program({"x": x.shape}, threads=2)
    assert program.output_shapes == ((1, 8, 600), (1, 16, 300))
    expected = network(x, threads=2)
    assert network.program({"x": x.shape}, threads=2) is program
    for result, value in zip(program.run(x), expected, strict=True):
        assert result.tobytes() == value.tobytes()
