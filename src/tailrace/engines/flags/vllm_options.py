"""The options of `vllm serve` 0.32.0, read from its own `--help=all`: names, what they take, defaults.

One option a line: its name without dashes; `-` takes nothing, `!` has a `--no-` form, `=` takes a value, `+` several,
`?` perhaps one; then the default (`yes` of a switch that is on), the values in braces where the engine lists few, and
other spellings. Defaults that the engine decides at its start, and long ones, are left out.
"""

from __future__ import annotations

from typing import Final

VLLM_0_32_0: Final = """
aggregate-engine-logging-
api-server-count= -asc
config=
disable-log-stats-
enable-log-requests!
fail-on-environ-validation!
gdn-prefill-backend= {flashinfer,triton,cutedsl,aiter_flydsl}
grpc-
headless-
kda-decode-backend= {auto,native,flashinfer,triton}
kda-prefill-backend= {auto,triton,flashkda,flashinfer,fused}
shutdown-timeout=0
allow-credentials!
allowed-headers=
allowed-methods=
allowed-origins=
anthropic-disabled-thinking-effort=auto {auto,high,low,max,medium,none,xhigh}
api-key+
chat-template=
chat-template-content-format=auto {auto,openai,string}
cohere-format=cmd4
cohere-is-reasoning-model!yes
data-parallel-supervisor-port=9256
default-chat-template-kwargs=
disable-access-log-for-endpoints=
disable-fastapi-docs!
disable-uvicorn-access-log!
dp-supervisor-probe-failure-threshold=3
dp-supervisor-probe-interval-s=5.0
dp-supervisor-probe-timeout-s=5.0
enable-auto-tool-choice!
enable-flash-late-interaction!yes
enable-force-include-usage!
enable-log-deltas!yes
enable-log-outputs!
enable-offline-docs!
enable-per-request-metrics!
enable-prompt-tokens-details!
enable-request-id-headers!
enable-scale-out!
enable-server-load-tracking!
enable-ssl-refresh!
enable-tokenizer-info-endpoint!
exclude-tools-when-tool-choice-none!
fingerprint-mode=full {custom,full,hash,none}
fingerprint-value=
grpc-port=
h11-max-header-count=256
h11-max-incomplete-event-size=4194304
host=
log-error-stack!
lora-modules+
max-log-len=
middleware=
port=8000
response-role=assistant
return-tokens-as-token-ids!
root-path=
sse-keep-alive-interval=0
ssl-ca-certs=
ssl-cert-reqs=0
ssl-certfile=
ssl-ciphers=
ssl-keyfile=
tokens-only!
tool-call-parser=
tool-parser-plugin=
tool-server=
tool-strict-level=auto {auto,function,parameter}
trust-request-chat-template!
trust-request-mm-kwargs!
uds=
uvicorn-log-level=info {critical,debug,error,info,trace,warning}
allow-deprecated-quantization!
allowed-local-media-path=
allowed-media-domains+
code-revision=
config-format=auto
convert=auto {auto,classify,embed,none}
disable-cascade-attn!
disable-sliding-window!
dtype=auto {auto,bfloat16,float,float16,float32,half}
enable-cumem-allocator!
enable-nccl-comm-suspend!
enable-prompt-embeds!
enable-return-routed-experts!
enable-sleep-mode!
enable-trace-replay!
enforce-eager!
generation-config=auto
hf-config-path=
hf-overrides=
hf-token?
io-processor-plugin=
logits-processors+
logprobs-mode=raw_logprobs {processed_logits,processed_logprobs,raw_logits,raw_logprobs}
max-logprobs=20
max-model-len=
model=Qwen/Qwen3-0.6B
model-class-overrides=
model-impl=auto
override-generation-config=
pooler-config=
quantization= -q
quantization-config=
renderer-num-workers=1
return-sampling-mask!
revision=
runner=auto {auto,draft,generate,pooling}
seed=0
served-model-name+
skip-tokenizer-init!
sleep-mode-offload-cudagraph!
sleep-preserve-parameter-names+
tokenizer=
tokenizer-mode=auto
tokenizer-revision=
trust-remote-code!
use-fp64-gumbel!
download-dir=
ignore-patterns+
load-format=auto
model-loader-extra-config=
pt-load-map-location=cpu
safetensors-load-strategy= {eager,lazy,prefetch,torchao,None}
safetensors-prefetch-block-size=16777216
safetensors-prefetch-num-threads=8
use-tqdm-on-load!yes
attention-backend=
enable-mamba-cache-stochastic-rounding!
mamba-backend=MambaBackendEnum.TRITON
mamba-cache-philox-rounds=0
mamba-ssu-algorithm= {auto,horizontal,simple,vertical,None}
reasoning-parser=
reasoning-parser-plugin=
all2all-backend=allgather_reducescatter
cp-kv-cache-interleave-size=
cpu-distributed-timeout-seconds=
data-parallel-address= -dpa
data-parallel-backend=mp -dpb
data-parallel-external-lb! -dpe
data-parallel-hybrid-lb! -dph
data-parallel-multi-port-external-lb- -dpm
data-parallel-rank= -dpn
data-parallel-rpc-port= -dpp
data-parallel-size=1 -dp
data-parallel-size-local= -dpl
data-parallel-start-rank= -dpr
dbo-decode-token-threshold=32
dbo-prefill-token-threshold=512
dcp-comm-backend= {a2a,ag_rs,None}
dcp-kv-cache-interleave-size=1
dcp-q-replicate!
decode-context-parallel-size=1 -dcp
device-ids=
disable-custom-all-reduce!
disable-nccl-for-dp-synchronization!
distributed-executor-backend=
distributed-timeout-seconds=
dp-sync-interval=16
elastic-ep-max-dp-size=
enable-batch-sharded-sampling!
enable-dbo!
enable-elastic-ep!
enable-ep-weight-filter!
enable-eplb!
enable-expert-parallel! -ep
enable-fault-tolerance!
enable-hc-sp!
enable-shm-tensor-arena!
eplb-config=
expert-placement-strategy=linear {linear,round_robin}
fault-tolerance-config=
master-addr=127.0.0.1
master-port=29501
max-parallel-loading-workers=
nnodes=1 -n
node-rank=0 -r
numa-bind!
numa-bind-cpus+
numa-bind-nodes+
pipeline-parallel-size=1 -pp
prefill-context-parallel-size=1 -pcp
ray-workers-use-nsight!
tensor-parallel-size=1 -tp
ubatch-size=0
worker-cls=auto
worker-extension-cls=
block-size=
enable-mamba-shared-prefix-checkpoint!
enable-prefix-caching!
gpu-memory-utilization=0.92 --device-memory-utilization
kv-cache-dtype=auto
kv-cache-dtype-skip-layers+
kv-cache-memory-bytes=
kv-offloading-backend=native {lmcache,native}
kv-offloading-size=
kv-sharing-fast-prefill!
mamba-block-size=
mamba-cache-dtype=auto {auto,bfloat16,float16,float32}
mamba-cache-mode=none {align,none}
mamba-ssm-cache-dtype=auto {auto,bfloat16,float16,float32}
num-gpu-blocks-override=
prefix-cache-retention-interval=0
prefix-caching-hash-algo=sha256 {sha256,sha256_cbor,xxhash,xxhash_cbor}
prefix-match-unit=
replayssm-buffer-len=16
swa-bounded-replay!yes
use-replayssm!
cpu-offload-gb=0
cpu-offload-params+set(
offload-backend=auto {auto,prefetch,uva}
offload-group-size=0
offload-num-in-group=1
offload-params+set(
offload-prefetch-step=1
enable-mm-embeds!
interleave-mm-strings!
language-model-only!
limit-mm-per-prompt=
media-io-kwargs=
mm-device-do-normalize!
mm-encoder-attn-backend=
mm-encoder-attn-dtype= {fp8,None}
mm-encoder-fp8-scale-path=
mm-encoder-fp8-scale-save-margin=1.5
mm-encoder-fp8-scale-save-path=
mm-encoder-only!
mm-encoder-tp-mode=weights {data,weights}
mm-hasher-algorithm=blake3 {blake3,sha256,sha512}
mm-ipc-gpu-memory-gb=0
mm-processor-cache-gb=4
mm-processor-cache-type=lru {lru,shm}
mm-processor-device=auto {auto,cpu}
mm-processor-kwargs=
mm-shm-cache-max-object-size-mb=128
mm-tensor-ipc=direct_rpc {direct_rpc,torch_shm}
skip-mm-profiling!
video-pruning-method=evs {evs,vidcom2}
video-pruning-rate=
default-mm-loras=
enable-lora!
enable-mixed-moe-lora-format!
enable-moe-shared-loras!
enable-tower-connector-lora!
fully-sharded-loras!
lora-dtype=auto {auto,bfloat16,float16}
lora-target-modules+
max-cpu-loras=
max-lora-cls-labels=
max-lora-rank=16 {1,8,16,32,64,128,256,320,512}
max-loras=1
specialize-active-lora!
log-config-file=
log-level= {CRITICAL,ERROR,WARNING,INFO,DEBUG,NOTSET}
logging-config=
collect-detailed-traces+
cudagraph-metrics!
custom-histogram-buckets=
enable-layerwise-nvtx-tracing!
enable-logging-iteration-details!
enable-mfu-metrics!
jit-monitor-mode=warn {error,warn}
jit-monitor-verbose!
kv-cache-metrics!
kv-cache-metrics-sample=0.01
otlp-traces-endpoint=
per-request-spec-decode-metrics=none {detailed,none,summary}
show-hidden-metrics-for-version=
async-scheduling!
disable-chunked-mm-input!
disable-hybrid-kv-cache-manager!
enable-chunked-prefill!
long-prefill-token-threshold=0
long-prefill-token-threshold-adaptive!
max-num-active-seqs=
max-num-batched-tokens=
max-num-queued-reqs=
max-num-queued-tokens=
max-num-scheduled-tokens=
max-num-seqs=
prefill-schedule-interval=1
scheduler-cls=
scheduler-reserve-full-isl!yes
scheduling-policy=fcfs {fcfs,priority}
stream-interval=1
watermark=0.0
cudagraph-capture-sizes+
max-cudagraph-capture-size=
enable-flashinfer-autotune!
ir-op-priority=
linear-backend=auto
moe-backend=auto
sparse-indexer-topk-backend=auto {aiter,auto,cooperative,deep_select,flashinfer,per_row,persistent,torch}
additional-config=
attention-config= -ac
aux-output-config=
compilation-config= -cc
diffusion-config= -dc
ec-manager-config=
ec-transfer-config=
engram-config=
kernel-config=
kv-events-config=
kv-transfer-config=
optimization-level=2
performance-mode=balanced {balanced,interactivity,throughput}
profiler-config=
reasoning-config=
spec-method=
spec-model=
spec-tokens=
speculative-config= -sc
structured-outputs-config=
watermark-config=
weight-transfer-config=
"""
