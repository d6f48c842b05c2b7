"""What bounds a rate, on figures that a pencil can follow."""

import pytest

from ray_backfill.learn.training.batches import Feeding, Work, feeding, total


def on_gpu(decode_per_cpu: float, model: float, write: float, cpus: int) -> Feeding:
    """Of 9,000 images on one GPU."""
    of_images = {"decoded": 9000, "pixel_bytes": 9000 * 1_000_000}
    work = Work(9000, decode_s=9000 / decode_per_cpu, model_s=9000 / model, write_s=9000 / write, **of_images)
    return measured(work, cpus, on_gpu=True)


def measured(work: Work, cpus: int, on_gpu: bool, lent_cpus: int = 0) -> Feeding:
    found = feeding(work, cpus, on_gpu, lent_cpus)
    assert found is not None
    return found


def test_few_decoders_bound_a_gpu() -> None:
    found = on_gpu(55, 900, 1e9, cpus=4)
    assert found.fed == pytest.approx(220)
    assert found.cpus_needed == 17  # 900 / 55 = 16.4
    # 13 x 55 images of a megabyte.
    lend = "; with decode-cpus {} other nodes would send {} GB/s"
    said = "decode-bound: 4 CPUs per GPU give 220 img/s, 17 would give 900"
    assert found.sentence() == said + lend.format(13, 0.71)
    said = "decode-bound: 1 CPU per GPU gives 55 img/s, 17 would give 900"
    assert on_gpu(55, 900, 1e9, cpus=1).sentence() == said + lend.format(16, 0.88)


def test_lent_cpus_are_compared_with_own_ones() -> None:
    # Two own CPUs decode 100 images in 1 s each, four lent ones 160 in 2 s each.
    own, lent = {"decode_s": 2 + 8, "decode_cpu_s": 2}, {"lent": 160, "lent_s": 8, "lent_cpu_s": 4}
    work = Work(360, model_s=1, cpu_s=3, decoded=360, pixel_bytes=360 * 1_000_000, **own, **lent)
    found = measured(work, 6, on_gpu=True, lent_cpus=4)
    assert found.fed == pytest.approx(6 * 36)
    assert found.sentence() == (
        "decode-bound: 6 CPUs per GPU give 216 img/s, 10 would give 360; with decode-cpus 8 other nodes would "
        "send 0.29 GB/s; 4 CPUs elsewhere decoded 44 %, each 0.20 times as fast as one of its own"
    )
    assert found.facts()["decoded_elsewhere"] == 0.444
    idle = measured(Work(360, model_s=1, decoded=720, decode_s=10), 6, on_gpu=True, lent_cpus=4)
    assert idle.sentence().endswith("; 4 CPUs elsewhere decoded 0 %"), "they cannot see the images"
    on_cpus = measured(work, 6, on_gpu=False, lent_cpus=4)
    assert on_cpus.decode_per_cpu == pytest.approx(60)  # 6 s of CPU time, 4 of them lent
    assert on_cpus.shares == pytest.approx({"decode": 6 / 7, "model": 1 / 7, "write": 0})
    assert "elsewhere" not in on_gpu(55, 900, 1e9, cpus=4).sentence() + str(on_gpu(55, 900, 1e9, cpus=4).facts())


def test_an_exact_number_of_decoders_is_enough() -> None:
    found = on_gpu(100, 900, 1e9, cpus=9)
    assert (found.limit, found.cpus_needed) == ("model", 9)
    assert on_gpu(100, 900, 1e9, cpus=8).limit == "decode"


def test_many_decoders_wait_for_the_gpu() -> None:
    assert on_gpu(55, 900, 1e9, cpus=40).sentence() == (
        "model-bound: a GPU takes 900 img/s, 40 CPUs per GPU could give 2,200; 17 would do"
    )
    assert on_gpu(55, 900, 1e9, cpus=17).sentence().endswith("17 CPUs per GPU could give 935")


def test_what_writes_does_not_compute() -> None:
    found = on_gpu(500, 900, 450, cpus=2)
    assert found.consumed == pytest.approx(300)  # 1/900 + 1/450 = 3/900
    assert (found.limit, found.cpus_needed) == ("write", 1)
    assert on_gpu(500, 900, 1800, cpus=2).limit == "model"


def test_pixels_in_memory_have_no_rate() -> None:
    found = measured(Work(9000, model_s=10), 4, on_gpu=True)
    assert found.sentence() == "model-bound: a GPU takes 900 img/s, all pixels are in memory"
    assert {name for name in found.facts() if "images_per_s" in name} == {"model_images_per_s_per_device"}


def test_on_cpus_alone_shares_of_their_time_are_told() -> None:
    # 10 s of decoding (in 25 s by the clock: the model had the core), 2 of writing, and 8 for the rest.
    work = Work(1000, decode_s=25, decode_cpu_s=10, wait_s=3, model_s=15, write_s=2, write_cpu_s=2, cpu_s=20)
    found = measured(work, 1, on_gpu=False)
    assert found.sentence() == "CPU only, decode-bound: of the CPU time decoding 50 %, the models 40 %, writing 10 %"
    facts = found.facts()
    assert facts["decode_images_per_s_per_cpu"] == 100
    assert facts["cpu_shares"] == {"decode": 0.5, "model": 0.4, "write": 0.1}
    assert facts["waited_for_pixels"] == 0.15  # of 20 s


def test_work_adds_up_and_nothing_done_says_nothing() -> None:
    one, two = Work(1, 2, 3, 4, 5, 6, 7, 8), Work(10, 20, 30, 40, 50, 60, 70, 80)
    assert total([one, two]) == Work(11, 22, 33, 44, 55, 66, 77, 88)
    assert feeding(total([]), 1, on_gpu=True) is None
    assert feeding(Work(5), 1, on_gpu=True) is not None, "what took no time is no error"
