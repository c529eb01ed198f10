import os
import signal
import subprocess
import sys
import time
import zlib

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tailrace.model.client_sample import ClientSample
from tailrace.model.engine_state import EngineState
from tailrace.model.errors import InputError, RunFileError, StoreError
from tailrace.model.measurement import ClientHealth
from tailrace.model.timeline import Timeline
from tailrace.store.run_block import decode_records, encode_records
from tailrace.store.run_file import Arrival, RunHeader, RunTrailer, RunWriter, is_run_file, read_run
from tailrace.store.run_frame import MAGIC, PREAMBLE_BYTES, FrameKind, frame, scan
from tests.store.processes import child_environment
from tests.store.samples import any_record, realistic

HEADER = RunHeader(
    version="0.1.0",
    target="http://127.0.0.1:8000",
    arrival=Arrival(kind="poisson", rate=5.0, seed=3),
    mix="short:0.9,long:0.1",
    knobs={"max_num_seqs": 64, "enable_chunked_prefill": False},
    started_unix_ns=1_790_000_000_123_456_789,
    notes=["warm-up of 10 s left out"],
)
TRAILER = RunTrailer(n=0, client=ClientHealth(loop_lag_p99_ms=1.5), duration_s=60.25, counters={"late": 2})
NAMES = {"running": "vllm:num_requests_running"}


def write(path, records, trailer=TRAILER, states=(), samples=(), block=None):
    """`block`: records a block; otherwise as the writer does by itself."""
    with RunWriter(path, HEADER) as writer:
        for place, record in enumerate(records):
            writer.write(record)
            if block and (place + 1) % block == 0:
                writer.flush()
        for state in states:
            writer.write_state(state)
        for sample in samples:
            writer.write_sample(sample)
        if trailer is not None:
            writer.close(msgspec.structs.replace(trailer, n=len(records)))
    return path


def frames_of(path):
    found, flaws = scan(path.read_bytes())
    assert not flaws
    return found


@given(st.lists(any_record(), max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path, records):
    run = read_run(write(tmp_path / "a.run", records))
    assert run.records == records
    assert run.header == HEADER
    assert run.trailer == msgspec.structs.replace(TRAILER, n=len(records))
    assert not run.problem
    assert list(run.table().records()) == records


_STAMP = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**33) | st.integers(2**63, 2**64 - 1)


@given(st.lists(st.none() | st.lists(_STAMP, max_size=6), min_size=1, max_size=5), st.data())
@example([[0, 2**32 - 1], [2**32], [], None], None)
@example([[5, 3, 4]], None)
def test_any_stamps_come_back_to_the_nanosecond(stamps, data):
    def line(at):
        if at is None:
            return None
        count = len(at)
        if data is None:
            return Timeline(at, [0] * count, [1] * count)
        small = st.lists(st.integers(-1, 300), min_size=count, max_size=count)
        return Timeline(at, data.draw(small), data.draw(small), data.draw(st.integers(0, 9)), data.draw(small))

    (one,) = realistic(1)
    records = [msgspec.structs.replace(one, timeline=line(at)) for at in stamps]
    assert decode_records(encode_records(records), len(records)) == records


def test_states_and_samples_come_back_beside_the_records(tmp_path):
    states = [
        EngineState(at_ns=5, running=3, kv_usage=0.5, names=NAMES),
        EngineState(at_ns=6, running=4, names=NAMES),
        EngineState(at_ns=7, names={}),
        EngineState(at_ns=8, waiting=0, names={**NAMES, "waiting": "w"}),
    ]
    samples = [ClientSample(at_ns=10**9 * n, span_ns=10**9, process=n % 2, cpu_share=0.5) for n in range(300)]
    run = read_run(write(tmp_path / "a.run", realistic(200), states=states, samples=samples))
    assert run.states == states
    assert run.health == samples
    assert len(run.records) == 200


def test_objectives_survive_with_their_numeric_quantiles(tmp_path):
    run = read_run(write(tmp_path / "a.run", []))
    assert run.header.objectives.bounds["ttft"] == {0.99: 500_000_000}


def test_the_index_and_the_end_mark_tell_where_every_block_is(tmp_path):
    path = write(tmp_path / "a.run", realistic(10), block=3, samples=[ClientSample(at_ns=1, span_ns=1)])
    found = frames_of(path)
    assert [one.kind for one in found] == [
        FrameKind.HEADER,
        *[FrameKind.RECORDS] * 4,
        FrameKind.SAMPLES,
        FrameKind.TRAILER,
    ]
    index = msgspec.msgpack.decode(found[-1].payload)["index"]
    assert index == [[one.kind, one.at, one.rows] for one in found[:-1]]
    data = path.read_bytes()
    assert int.from_bytes(data[-16:-8], "little") == found[-1].at
    assert is_run_file(data[:64])


def test_a_file_cut_at_any_byte_is_refused_and_its_whole_blocks_are_read_when_asked(tmp_path):
    records = realistic(9, kept=0.5, events=3)
    path = write(tmp_path / "whole.run", records, block=3)
    whole, found = path.read_bytes(), frames_of(path)
    ends = [one.end for one in found]
    cut = tmp_path / "cut.run"
    for at in sorted({*ends, *(end + 1 for end in ends), *range(0, len(whole), 41), len(whole) - 1} - {len(whole)}):
        cut.write_bytes(whole[:at])
        with pytest.raises(RunFileError) as caught:
            read_run(cut)
        assert str(cut) in str(caught.value)
        if at < ends[0]:
            with pytest.raises(RunFileError, match=r"header is cut|is empty"):
                read_run(cut, allow_partial=True)
            continue
        assert caught.value.place.rpartition(", byte ")[2].isdigit()
        kept = sum(one.rows for one in found[1:-1] if one.end <= at)
        assert f"--partial to use the {kept} requests" in caught.value.remedy
        run = read_run(cut, allow_partial=True)
        assert run.records == records[:kept]
        assert "interrupted, or the file was" in run.problem
        assert run.trailer is None


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "a.run"
    states = [EngineState(at_ns=5, running=3, names=NAMES)]
    write(path, realistic(9, kept=0.5, events=3), block=3, states=states)
    return path, read_run(path), frames_of(path)


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_seen_and_what_is_read_is_whole_blocks(small, tmp_path, data):
    path, run, _ = small
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    what = data.draw(st.sampled_from(["as it is", "cut", "doubled", "piece out"]))
    at = data.draw(st.integers(0, len(content)))
    if what == "cut":
        del content[at:]
    elif what == "doubled":
        content += content[at:]
    elif what == "piece out":
        del content[at : at + data.draw(st.integers(1, 200))]
    if bytes(content) == path.read_bytes():
        return
    bad = tmp_path / "bad.run"
    bad.write_bytes(content)
    with pytest.raises(RunFileError) as caught:
        read_run(bad)
    assert str(bad) in str(caught.value)
    assert caught.value.remedy
    try:
        part = read_run(bad, allow_partial=True)
    except RunFileError:
        return  # the header is gone
    assert part.problem
    assert part.trailer is None
    assert part.header == run.header
    groups = [run.records[n : n + 3] for n in (0, 3, 6)]
    assert any(
        part.records == [record for place in chosen for record in groups[place]]
        for chosen in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    )


def test_damage_in_the_middle_is_named_and_what_is_behind_it_is_kept(tmp_path):
    records = realistic(12)
    path = write(tmp_path / "a.run", records, block=3)
    found = frames_of(path)
    content = bytearray(path.read_bytes())
    content[found[2].at + 40] ^= 1
    path.write_bytes(content)
    says = rf"a\.run, byte {found[2].at}: block 2 is damaged, the checksum does not match.*3 requests are lost with it"
    with pytest.raises(RunFileError, match=says):
        read_run(path)
    run = read_run(path, allow_partial=True)
    assert run.records == records[:3] + records[6:]
    content[found[3].at + 1] ^= 1  # the mark by which a block is found
    path.write_bytes(content)
    with pytest.raises(RunFileError, match=r"blocks 2 to 3 are damaged.*6 requests are lost"):
        read_run(path)
    assert read_run(path, allow_partial=True).records == records[:3] + records[9:]


def test_a_block_that_was_taken_out_is_missed(tmp_path):
    records = realistic(9)
    path = write(tmp_path / "a.run", records, block=3)
    found, content = frames_of(path), path.read_bytes()
    path.write_bytes(content[: found[2].at] + content[found[2].end :])
    with pytest.raises(RunFileError, match=rf"byte {found[2].at}: block 2 is missing before this place: 3 requests"):
        read_run(path)
    assert read_run(path, allow_partial=True).records == records[:3] + records[6:]


def test_joined_files_and_what_follows_the_end_are_told_apart(tmp_path):
    one, two = write(tmp_path / "a.run", realistic(4)), write(tmp_path / "b.run", realistic(5, seed=2))
    first, second = one.read_bytes(), two.read_bytes()
    joined = tmp_path / "c.run"
    for content, says, kept in (
        (first + second, rf"byte {len(first)}: a second run begins after the end of the first: two files were", 4),
        (first[:-16] + second, "two files were joined", 4),
        (first[: frames_of(one)[-1].at] + second, "a second run begins here: two files were joined", 4),
        (first[: frames_of(one)[-1].at - 9] + second, "block 1 is damaged", 0),
        (first + b"some text\n", r"something follows the end of the run \(10 bytes\): 'some text'", 4),
        # Blocks of one run in another, each whole by itself.
        (first[: frames_of(one)[1].at] + second[frames_of(two)[1].at :], "block 1 is damaged", 0),
    ):
        joined.write_bytes(content)
        with pytest.raises(RunFileError, match=says):
            read_run(joined)
        assert len(read_run(joined, allow_partial=True).records) == kept


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "this is not a run file; it begins with"),
        (b"hello world\n", "this is not a run file; it begins with 'hello world"),
        (b'{"model": "x", "ttft": 1}\n', "this is not a run file"),
        (b"x" * 300_000, "this is not a run file"),
        (MAGIC[:5], "the header is cut"),
        (MAGIC + b"\x02", "the header is cut"),
        (
            MAGIC + b"\x07\0\0\0" + b"9.1.0".ljust(16, b"\0"),
            "it was written in version 7 .*version 9.1.0",
        ),
        (MAGIC.replace(b"\r\n", b"\n"), "this run file was transferred as text"),
        (zlib.compress(b"x" * 99, wbits=31), "this file is packed with gzip. Unpack it first"),
        (
            b'{"tailrace_run":1,"record_schema":1,"version":"0.1.0","kind":"bench"}\n',
            r"this run file is JSON lines, as Tailrace wrote them before .*\(0.1.0\).*measure again",
        ),
    ],
)
def test_a_wrong_file_says_what_it_is(tmp_path, content, says):
    path = tmp_path / "wrong.run"
    path.write_bytes(content)
    for partial in (False, True):
        with pytest.raises(RunFileError, match=rf"wrong\.run: {says}"):
            read_run(path, allow_partial=partial)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tailrace_run": 3, "version": "9.0"}, "tailrace_run is 3, this Tailrace reads 2.*version 9.0"),
        ({"record_schema": 4}, "record_schema is 4"),
        ({"kind": 5}, "the header does not fit: .*kind"),
    ],
)
def test_a_header_of_another_form_is_refused(tmp_path, change, says):
    path = write(tmp_path / "a.run", [])
    content = path.read_bytes()
    head = msgspec.msgpack.decode(frames_of(path)[0].payload)
    head["header"].update(change)
    begin = content[:PREAMBLE_BYTES]
    payload = msgspec.msgpack.encode(head)
    path.write_bytes(begin + frame(FrameKind.HEADER, 0, 1, payload, seed=zlib.crc32(begin)))
    with pytest.raises(RunFileError, match=says):
        read_run(path, allow_partial=True)


def test_fields_of_another_tailrace_are_left_out_or_take_their_defaults():
    records = realistic(5)
    numbers, packed, *gaps = msgspec.msgpack.decode(encode_records(records))
    from tailrace.store.run_block import NUMBERS

    place = NUMBERS.index("attempts")
    without = [*numbers[:place], *numbers[place + 1 :], ["new"]]
    names = [*NUMBERS[:place], *NUMBERS[place + 1 :], "a_later_field"]
    payload = msgspec.msgpack.encode([without, packed, *gaps])
    assert decode_records(payload, 5, names) == records


@given(st.binary(max_size=300))
def test_a_payload_of_anything_is_refused_without_a_traceback(content):
    with pytest.raises(ValueError, match=r"."):
        decode_records(content, 3)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(RunFileError, match=r"nowhere\.run: there is no such file.*tailrace bench"):
        read_run(tmp_path / "nowhere.run")
    with pytest.raises(RunFileError, match=r"this is a directory.*tailrace records"):
        read_run(tmp_path)


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot write the run file: No such file or directory"):
        RunWriter(tmp_path / "no" / "a.run", HEADER)
    with pytest.raises(StoreError, match=r"/dev/full: cannot write .*No space left on device.*Free space"):
        # The kernel's own full disk.
        RunWriter("/dev/full", HEADER)


def test_a_disk_that_fills_up_keeps_what_fitted_and_says_so(tmp_path):
    path = tmp_path / "a.run"
    code = (
        "import resource, signal, sys\n"
        "from tailrace.model.errors import StoreError\n"
        "from tailrace.store.run_file import RunHeader, RunWriter\n"
        "from tests.store.samples import realistic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        # A file that may not grow beyond this: the kernel refuses in the middle of a write, as a full disk does.
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "try:\n"
        "    with RunWriter(sys.argv[1], RunHeader()) as writer:\n"
        "        for record in realistic(3_000, kept=0):\n"
        "            writer.write(record)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, env=child_environment(), check=True, timeout=20
    ).stdout.decode()
    assert str(path) in out
    assert "--partial" in out
    assert "give --out a path on another disk" in out
    run = read_run(path, allow_partial=True)
    assert len(run.records) >= 128
    assert f"The first {len(run.records)} requests are in it" in out
    assert run.records == realistic(len(run.records), kept=0)
    assert "ends without its trailer" in run.problem  # the torn block was taken back


def test_a_trailer_that_miscounts_is_a_bug_of_the_writer(tmp_path):
    writer = RunWriter(tmp_path / "a.run", HEADER)
    writer.write(realistic(1)[0])
    with pytest.raises(ValueError, match="the trailer says 2 records, 1 were written"):
        writer.close(RunTrailer(n=2))
    with pytest.raises(ValueError, match="closed"):
        writer.write(realistic(1)[0])


def test_a_record_reaches_the_disk_by_itself_within_half_a_second(tmp_path):
    path = tmp_path / "a.run"
    with RunWriter(path, HEADER) as writer:
        writer.write(realistic(1)[0])
        began = time.monotonic()
        while not read_run(path, allow_partial=True).records:
            assert time.monotonic() - began < 5, "never written"
            time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_keeps_all_but_the_last_half_second(tmp_path, how):
    path = tmp_path / "a.run"
    code = (
        "import sys, time\n"
        "from tailrace.store.run_file import RunHeader, RunWriter\n"
        "from tests.store.samples import realistic\n"
        "with RunWriter(sys.argv[1], RunHeader()) as writer:\n"
        "    for n, record in enumerate(realistic(2_500, kept=0)):\n"
        "        writer.write(record)\n"
        "        print(n, time.monotonic(), flush=True)\n"
        "        time.sleep(0.002)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
    ) as child:
        for line in child.stdout:
            if int(line.split()[0]) >= 400:
                break
        os.kill(child.pid, how)
        rest, _ = child.communicate(timeout=10)
    assert child.returncode != 0
    lines = [line, *rest.splitlines()]
    stamps = {int(one.split()[0]): float(one.split()[1]) for one in lines if one.count(b" ") == 1}
    last = max(stamps)
    run = read_run(path, allow_partial=True)
    assert "the run was interrupted, or the file was" in run.problem
    assert run.records == realistic(len(run.records), kept=0)
    if len(run.records) <= last and how is signal.SIGKILL:
        # The first that is lost came half a second before the end at most; a loaded machine's thread is later.
        lost = stamps.get(len(run.records), min(stamps.values()))
        assert stamps[last] - lost < 1.5
    else:
        assert len(run.records) > last


def test_a_file_made_to_be_slow_is_given_up(tmp_path):
    """A million places that look like the beginning of a long block."""
    path = write(tmp_path / "a.run", realistic(3), block=3)
    content, found = path.read_bytes(), frames_of(path)
    # Each says that it reaches almost to the end of the file, so that each would be summed to it.
    bait = content[found[1].at : found[1].at + 24]
    fake = bait[:16] + (1_000_000).to_bytes(4, "little") + b"\0\0\0\0"
    path.write_bytes(content[: found[1].end] + fake * 100_000)
    began = time.process_time()
    run = read_run(path, allow_partial=True)
    assert time.process_time() - began < 5
    assert len(run.records) == 3
    assert "block 2 is damaged" in run.problem or "block 2 is cut" in run.problem


def test_a_value_that_no_file_can_hold_is_told_to_whoever_writes_next(tmp_path):
    (one,) = realistic(1)
    path = tmp_path / "a.run"
    writer = RunWriter(path, HEADER)
    writer.write(msgspec.structs.replace(one, e2e_ns=2**70))

    def insist():
        began = time.monotonic()
        while time.monotonic() - began < 5:
            time.sleep(0.05)
            writer.write_sample(ClientSample(at_ns=1, span_ns=1))

    with pytest.raises(OverflowError):
        insist()
    writer.close()
    assert read_run(path, allow_partial=True).records == []
