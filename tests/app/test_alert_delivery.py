"""Receivers that misbehave: what becomes of a message is said in one short line, without the address's path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from tailrace.app.alert_delivery import Delivery
from tailrace.export.alert_payloads import Said
from tailrace.gateway.alert_keys import (
    AlertsConfig,
    BurnConfig,
    DiagnosisConfig,
    ReceiverConfig,
    check_alerts,
    check_diagnosis,
)
from tailrace.gateway.config_values import Duration
from tailrace.govern.burn_rate import Alert, State
from tailrace.model.errors import ConfigError

SECRET = "T0KEN-in-the-path"


def said() -> Said:
    alert = Alert(
        key="default/ttft_p99/quantile 5m", state=State.FIRING, severity="notice", lane="default",
        objective="ttft_p99", rule="quantile 5m", bound_ns=1, requests=1, missed=1, burn_rate=1.0,
        short_burn_rate=1.0, began_ns=0, text="slow",
    )  # fmt: skip
    return Said(alert=alert, began_unix_ns=0, until_unix_ns=1, gateway="http://127.0.0.1:1")


async def error_of(answer: Callable[[asyncio.StreamWriter], None], **receiver: object) -> str:
    """The error after the first try at a server that answers so."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        answer(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = ReceiverConfig(url=f"http://127.0.0.1:{port}/{SECRET}", timeout=Duration(500_000_000), **receiver)  # type: ignore[arg-type]
    delivery = Delivery(config)
    delivery.offer(said())
    sending = asyncio.ensure_future(delivery.run())
    for _ in range(100):
        await asyncio.sleep(0.05)
        if delivery.error:
            break
    assert not sending.done(), "the sending must outlive a receiver that misbehaves"
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    server.close()
    for writer in writers:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    assert SECRET not in str(delivery.view())
    return delivery.error


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n", "500"),
        (b"HTTP/1.1 302 no\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "302"),
        (b"\0\xff" * 4000, "Bad status line"),
        (b"HTTP/1.1 200", "Timeout"),
        (b"", "Timeout"),
    ],
)
def test_a_receiver_that_misbehaves_is_named_in_one_short_line(answer: bytes, words: str) -> None:
    error = asyncio.run(error_of(lambda writer: writer.write(answer)))
    assert words in error
    assert len(error) <= 200
    assert "\n" not in error


def test_a_token_that_no_header_carries_does_not_end_the_sending() -> None:
    assert asyncio.run(error_of(lambda writer: None, token="a\nb"))


def of(key: str, state: State = State.FIRING, text: str = "") -> Said:
    plain = said()
    return msgspec.structs.replace(plain, alert=msgspec.structs.replace(plain.alert, key=key, state=state, text=text))


def waiting(delivery: Delivery) -> list[tuple[str, str, str]]:
    async def all_of_them() -> list[Said]:
        return [await delivery._next() for _ in range(delivery.view()["waiting"])]

    return [(one.alert.key, one.alert.state.value, one.alert.text) for one in asyncio.run(all_of_them())]


def test_alarms_of_many_lanes_at_once_all_find_room() -> None:
    delivery = Delivery(ReceiverConfig(url="http://127.0.0.1:1/x"))
    for lane in range(400):
        delivery.offer(of(f"lane{lane}/ttft_p99/quantile 5m"))
    assert (delivery.view()["waiting"], delivery.counts["dropped"]) == (400, 0)
    for lane in range(2000):
        delivery.offer(of(f"more{lane}"))
    assert (delivery.view()["waiting"], delivery.counts["dropped"]) == (1000, 1400)


def test_what_is_said_again_takes_no_second_place_and_the_last_word_is_how_it_is() -> None:
    delivery = Delivery(ReceiverConfig(url="http://127.0.0.1:1/x"))
    for text in ("first", "again"):
        delivery.offer(of("a", text=text))
    delivery.offer(of("b"))
    delivery.offer(of("a", State.RESOLVED))
    assert waiting(delivery) == [("a", "firing", "again"), ("b", "firing", ""), ("a", "resolved", "")]
    for state in (State.FIRING, State.RESOLVED, State.FIRING):
        delivery.offer(of("a", state))
    assert waiting(delivery) == [("a", "firing", "")]


def burn(**keys: object) -> BurnConfig:
    return BurnConfig(**{"rate": 14.4, "long": Duration(3600 * 10**9), "short": Duration(300 * 10**9), **keys})  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    section = AlertsConfig(burn=[burn(rate=rate)])
    with pytest.raises(ConfigError, match=r"burn\[0\]"):
        check_alerts(section, {"default": {"ttft_p99": 1}}, place="alerts")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"severities": ["pgae"]}, "no rule has the severity 'pgae'"),
        ({"severities": []}, "would hear nothing"),
        ({"token": "a\nb"}, "token"),
        ({"timeout": Duration(0)}, "timeout"),
    ],
)
def test_a_receiver_that_would_never_hear_is_refused(keys: dict[str, object], words: str) -> None:
    section = AlertsConfig(receivers=[ReceiverConfig(url="http://a/b", **keys)])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words):
        check_alerts(section, {}, place="alerts")


def test_every_severity_that_a_rule_has_is_taken() -> None:
    receiver = ReceiverConfig(url="http://a/b", severities=["page", "ticket", "notice"])
    check_alerts(AlertsConfig(receivers=[receiver]), {"default": {"ttft_p99": 1}}, place="alerts")


@pytest.mark.parametrize("keys", [{"window": Duration(0)}, {"timeout": Duration(0)}, {"requests": 0}])
def test_a_diagnosis_of_nothing_is_refused(keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(keys))):
        check_diagnosis(DiagnosisConfig(**keys), place="diagnosis")  # type: ignore[arg-type]


def test_a_rule_that_is_there_twice_is_refused() -> None:
    section = AlertsConfig(burn=[burn(), burn(severity="ticket")])
    with pytest.raises(ConfigError, match=r"burn\[1\].*same rule"):
        check_alerts(section, {"default": {"ttft_p99": 1}}, place="alerts")


def test_a_window_that_reaches_beyond_what_is_kept_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantile_window.*7d"):
        check_alerts(AlertsConfig(quantile_window=Duration(8 * 86_400 * 10**9)), {}, place="alerts")
