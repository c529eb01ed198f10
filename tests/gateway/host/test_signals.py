"""The two samplers together, as the gateway holds them."""

import time

from tailrace.gateway.config_sections import BackendConfig, SignalsConfig
from tailrace.gateway.config_values import Duration
from tailrace.gateway.host.signals import HostSignals
from tests.gateway.host.test_gpu_sources import fake_exporter, fake_nvidia_smi, no_pynvml
from tests.gateway.host.test_sampler import until

__all__ = ["fake_exporter", "fake_nvidia_smi", "no_pynvml"]
BACKEND = BackendConfig(url="http://127.0.0.1:1")


def started(**keys):
    signals = HostSignals(SignalsConfig(period=Duration(100_000_000), **keys), BACKEND)
    signals.start()
    return signals


def test_host_and_accelerators_side_by_side(no_pynvml, fake_nvidia_smi):
    signals = started()
    try:
        until(lambda: signals.latest_host() and signals.latest_gpus())
        seen = signals.view()
    finally:
        signals.close()
    assert [state.index for state in seen["latest"]["gpus"]] == ["0", "1"]
    assert "gpu" not in seen["absent"]
    assert "GPU 0 busy 91% 1410 MHz 300 W sw_power_cap" in signals.words()


def test_an_exporter_that_comes_later_is_read_from_then_on(fake_exporter):
    url, pages = fake_exporter
    page = pages.pop("/metrics")
    signals = started(gpu=f"{url}/metrics")
    try:
        until(lambda: "answers 404" in signals.view()["absent"].get("gpu", ""))
        assert signals.latest_gpus() == []
        pages["/metrics"] = page
        until(signals.latest_gpus)
        assert "gpu" not in signals.view()["absent"]
    finally:
        signals.close()


def test_without_a_device_the_host_is_read_all_the_same(no_pynvml, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    signals = started()
    try:
        until(signals.latest_host)
        assert "neither" in signals.view()["absent"]["gpu"]
        assert "GPU" not in signals.words()
    finally:
        began = time.monotonic()
        signals.close()
        assert time.monotonic() - began < 3


def test_the_reading_has_begun_before_anything_is_known_and_says_so():
    signals = HostSignals(SignalsConfig(), BACKEND)
    seen = signals.view()
    assert seen["latest"] == {"host": None, "gpus": []}
    assert "no sample yet" in seen["absent"]["host"]
